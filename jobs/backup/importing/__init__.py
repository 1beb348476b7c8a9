"""Configuration import: models, keys and settings of a backup on a master that has its own.

`content` reads the backup, `reading` the rows of this master; `planning` compares both by the person's choices and
returns the plan, which a person sees; `writing` carries out that plan. Never the CA, trust, or addresses.
"""
