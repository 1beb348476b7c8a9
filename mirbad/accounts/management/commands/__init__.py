"""``manage.py createsuperuser``."""
