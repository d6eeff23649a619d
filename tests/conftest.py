"""Fixtures of every test: real Postgres, sync and async alike, no network."""

from __future__ import annotations

pytest_plugins = ["tests.fix_postgres", "tests.fix_memory"]
