.PHONY: up test check figures clean
PYTHON ?= python3
VENV := .venv
