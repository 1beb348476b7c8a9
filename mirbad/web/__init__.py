"""What every page shares: shell, page-or-fragment, content security policy."""
