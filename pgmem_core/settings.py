"""Settings: one place for every number a deployment may want to change.

Each is read from the constructor first, then from the environment as `PGMEM_<NAME>`. An unknown name raises.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pgmem_core.errors import ConfigurationError

__all__ = ["Settings", "make_settings"]


class Settings(BaseSettings):
    """How pgmem stores and recalls. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="PGMEM_", extra="forbid", frozen=True)

    schema_name: str = Field(default="pgmem", description="Postgres schema that holds every object of pgmem")
    language: str = Field(default="english", description="stemming language of the words index, or 'simple'")

    pooler: Literal["none", "pgbouncer"] = Field(
        default="none", description="'pgbouncer' for transaction pooling: no prepared statements, no session state"
    )
    pool_size: int = Field(default=5, ge=1, le=1000)
    max_overflow: int = Field(default=10, ge=0, le=1000)
    pool_timeout_seconds: float = Field(default=30.0, gt=0)
    connect_timeout_seconds: int = Field(default=10, ge=1)

    budget_tokens: int = Field(default=8000, ge=64, description="tokens of a whole compiled context")
    prefix_tokens: int = Field(default=400, ge=0, description="most tokens of the stable prefix's memory")
    recall_tokens: int = Field(default=800, ge=0, description="most tokens of recalled items in the tail")
    recall_items: int = Field(default=8, ge=0, le=100, description="most recalled items in the tail")
    window_turns: int = Field(default=200, ge=2, le=2000, description="most turns of the live window")

    embed_timeout_ms: int = Field(default=150, ge=1, description="past it the read goes by words alone")
    embed_batch_size: int = Field(default=128, ge=1, le=4096)

    half_life_days: float = Field(default=30.0, gt=0, description="age at which half of the recency share is gone")
    fact_half_life_days: float = Field(
        default=180.0, gt=0, description="the same for a fact, counted from when it was last confirmed"
    )
    recency_share: float = Field(default=0.10, ge=0, le=1, description="share of the score that age can take away")
    relevance_floor: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="relevance below which nothing is injected; None: the embedder's own",
    )

    log_injections: bool = Field(default=True, description="keep what each prompt showed, for replay and 'pgmem why'")

    formation: str = Field(
        default="exchange", description="when facts are formed: 'exchange', 'session_end', 'idle:60s' or 'manual'"
    )
    formation_debounce_seconds: float = Field(
        default=1.0, ge=0, description="a session is read once nothing was added to it for this long"
    )
    formation_lease_seconds: float = Field(
        default=300.0, gt=0, description="how long one worker may take over a session's facts and summaries"
    )
    model: str | None = Field(default=None, description="chat model for facts and summaries, 'openai:gpt-4o-mini'")
    extractor: Literal["model", "patterns", "none"] | None = Field(
        default=None, description="'patterns' needs no model (English); None: the model's, if there is one"
    )

    policy: str | None = Field(
        default=None, description="write policy 'module:function', called with each text before it is stored"
    )
    redact: Literal["none", "secrets"] = Field(
        default="none", description="'secrets': keys, tokens and passwords are replaced before anything is stored"
    )
    review_confidence: float = Field(
        default=0.5, ge=0, le=1, description="facts less sure than this are listed for review"
    )

    compact_after_tokens: int = Field(
        default=2800, ge=64, description="more tokens of turns than this are summarised, all but the newest quarter"
    )

    worker_poll_seconds: float = Field(default=1.0, gt=0)
    worker_lease_seconds: float = Field(default=60.0, gt=0)

    prune_after_days: float | None = Field(
        default=None, ge=0, le=365_000, description="age at which `pgmem worker` deletes turns; None: never"
    )
    injections_days: float = Field(
        default=30.0, ge=0, le=365_000, description="how long it is kept what an agent was shown"
    )
    upkeep_interval_seconds: float = Field(
        default=3600.0, gt=0, description="how often `pgmem worker` prunes and expires"
    )

    @field_validator("formation")
    @classmethod
    def _formation_is_a_mode(cls, value: str) -> str:
        if not re.fullmatch(r"exchange|session_end|manual|idle:\d+(\.\d+)?s", value):
            raise ValueError(f"formation {value!r} is unknown; use 'exchange', 'session_end', 'idle:60s' or 'manual'")
        return value

    @field_validator("schema_name")
    @classmethod
    def _schema_is_an_identifier(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", value) or value.startswith("pg_"):
            raise ValueError(
                f"schema_name {value!r} must be a plain lower-case identifier (letters, digits, _; at most 63"
                " characters, not starting with pg_)"
            )
        return value


def make_settings(settings: Settings | None, options: dict[str, object]) -> Settings:
    """Return settings with options laid over them. Raises: ConfigurationError naming each bad setting."""
    unknown = sorted(set(options) - set(Settings.model_fields))
    if unknown:
        known = ", ".join(sorted(Settings.model_fields))
        raise ConfigurationError(f"unknown setting {', '.join(unknown)}; pgmem knows {known}")
    base = settings.model_dump(exclude_unset=True) if settings is not None else {}
    try:
        return Settings(**{**base, **options})
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'setting'}: {e['msg']}" for e in exc.errors())
        raise ConfigurationError(f"bad settings: {problems}") from None
