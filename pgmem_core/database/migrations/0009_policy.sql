-- What the write policy refused: that it was, not what it was.

CREATE TABLE refusals (
    tenant_id    text NOT NULL,
    refusal_id   uuid NOT NULL,          -- UUIDv7: in the order of time
    entry        text NOT NULL,          -- what was being written: turn, query, fact …
    reason       text NOT NULL,          -- as the policy said
    content_hash bytea NOT NULL CHECK (octet_length(content_hash) = 32),  -- of the group and the text
    length       bigint NOT NULL,        -- characters
    refused_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, refusal_id)
);
