"""People and programs that administer Mirbad: roles, log-in, admin tokens."""
