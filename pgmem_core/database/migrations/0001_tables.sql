-- Every primary key, unique index and foreign key starts with tenant_id, so that the schema distributes by it.
-- Names are unqualified: the migration runs with search_path = <our schema>, <the schema of pgvector>.

CREATE TABLE embedding_models (          -- a reference table: few rows, the same for every tenant
    id          text PRIMARY KEY CHECK (id ~ '^m[0-9]+$'),  -- minted here; a literal in statements that compare vectors
    name        text NOT NULL UNIQUE,
    dimensions  integer NOT NULL CHECK (dimensions BETWEEN 1 AND 16000),
    source      text NOT NULL CHECK (source IN ('embedder', 'given')),  -- given: vectors the caller computed
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE sessions (
    tenant_id        text NOT NULL,
    session_id       text NOT NULL,
    user_id          text NOT NULL,
    agent_id         text,
    metadata         jsonb NOT NULL DEFAULT '{}',
    last_seq         bigint NOT NULL DEFAULT 0,
    token_total      bigint NOT NULL DEFAULT 0,
    parted           bigint NOT NULL DEFAULT 0,        -- turns that have left the window: archived or withdrawn
    embedded_through bigint NOT NULL DEFAULT 0,
    dirty            boolean NOT NULL DEFAULT false,   -- there are turns past embedded_through
    unformed         boolean NOT NULL DEFAULT false,   -- there are turns that no extractor has read
    uncompacted      boolean NOT NULL DEFAULT false,   -- whether a summary is due has not been looked at since
    forming_until    timestamptz,                      -- the lease of whoever extracts or summarises
    forming_attempts integer NOT NULL DEFAULT 0,
    forming_error    text,
    forming_retry_at timestamptz,
    touched_at       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- the last turn, or the end
    claimed_until    timestamptz,
    attempts         integer NOT NULL DEFAULT 0,
    last_error       text,
    retry_at         timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at         timestamptz
) WITH (fillfactor = 70);                -- last_seq moves with every turn; no index mentions it, so updates stay HOT
CREATE INDEX sessions_by_user ON sessions (tenant_id, user_id, created_at);
CREATE INDEX sessions_dirty ON sessions (tenant_id, session_id) WHERE dirty;
CREATE INDEX sessions_unformed ON sessions (tenant_id, session_id) WHERE unformed;
CREATE INDEX sessions_uncompacted ON sessions (tenant_id, session_id) WHERE uncompacted;
-- After the others: until ANALYZE has run every index costs the same, and the newest one wins. By another than this
-- a look-up by id walks the whole tenant: a turn written in 1 ms took 5 after 1,000 pairs.
ALTER TABLE sessions ADD PRIMARY KEY (tenant_id, session_id);

CREATE TABLE records (
    tenant_id      text NOT NULL,
    id             uuid NOT NULL,
    user_id        text NOT NULL,
    user_key       bigint NOT NULL,      -- 64-bit hash of user_id, the key of its postings
    session_id     text NOT NULL,
    agent_id       text,
    kind           text NOT NULL,
    seq            bigint,               -- turns only: gapless per session
    role           text,
    content        text NOT NULL,        -- the searchable text
    message        jsonb,                -- what content does not hold: blocks, tool calls, name
    metadata       jsonb NOT NULL DEFAULT '{}',
    token_count    integer NOT NULL,
    token_offset   bigint,               -- tokens of the session before this turn: the window starts by it
    provisional    boolean NOT NULL DEFAULT false,  -- a query that no explicit write has claimed yet
    alias_id       uuid,                 -- the caller's own id, where a provisional turn had been stored before it came
    created_at     timestamptz NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    invalidated_at timestamptz,          -- not recalled, not read again; of a turn: withdrawn, kept as evidence
    archived_at    timestamptz,          -- of a turn: when it left the live window; of a withdrawn one too
    terms          bigint[] NOT NULL DEFAULT '{}',  -- the record's postings by key, for deletion
    term_total     integer NOT NULL DEFAULT 0,      -- its length in terms, repeats counted
    model          text,                 -- embedding_models.id
    embedding      vector,
    sketch         bit varying GENERATED ALWAYS AS (binary_quantize(embedding)) STORED,  -- the vector's signs
    CHECK ((model IS NULL) = (embedding IS NULL)),
    CHECK ((kind = 'turn') = (seq IS NOT NULL))
);
-- Vectors stay in the row when they fit (the exact arm reads them all); the text moves out first.
ALTER TABLE records ALTER COLUMN embedding SET STORAGE MAIN;
CREATE INDEX records_of_session ON records (tenant_id, session_id, kind) WHERE seq IS NULL;
CREATE INDEX records_instructions ON records (tenant_id, session_id, seq) WHERE role IN ('system', 'developer');
CREATE INDEX records_unembedded ON records (tenant_id, id) WHERE model IS NULL AND seq IS NULL;
CREATE UNIQUE INDEX records_alias ON records (tenant_id, alias_id) WHERE alias_id IS NOT NULL;
CREATE INDEX records_scope ON records (tenant_id, user_id, created_at);
-- One bit a dimension beside the scope: a whole scope is compared without a look at the table (95 bytes a memory at
-- 256 dimensions).
CREATE INDEX records_sketch ON records (tenant_id, user_id, model) INCLUDE (sketch, id)
    WHERE embedding IS NOT NULL AND invalidated_at IS NULL;
CREATE STATISTICS records_scope_stats (mcv, dependencies, ndistinct) ON tenant_id, user_id, kind FROM records;
-- The last two, for the reason above.
ALTER TABLE records ADD PRIMARY KEY (tenant_id, id);
CREATE UNIQUE INDEX records_turns ON records (tenant_id, session_id, seq) WHERE seq IS NOT NULL;

CREATE TABLE postings (
    tenant_id text NOT NULL,
    user_key  bigint NOT NULL,           -- 8 bytes a posting, however long the user's id
    term      bigint NOT NULL,           -- 64-bit hash of the stem
    record_id uuid NOT NULL,
    tf        smallint NOT NULL,
    len       smallint NOT NULL,         -- the record's length in terms, capped at 32767
    PRIMARY KEY (tenant_id, user_key, term, record_id) INCLUDE (tf, len)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02);  -- index-only scans need a fresh visibility map

CREATE TABLE scope_stats (               -- refreshed off the turn
    tenant_id   text NOT NULL,
    level       text NOT NULL CHECK (level IN ('tenant', 'user')),
    user_id     text NOT NULL,           -- '' at level tenant
    record_count bigint NOT NULL,
    term_total  bigint NOT NULL,
    counted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, level, user_id)
);

CREATE TABLE record_history (            -- what update and delete of the plain verbs replaced
    tenant_id   text NOT NULL,
    record_id   uuid NOT NULL,
    version     integer NOT NULL,
    user_id     text NOT NULL,
    event       text NOT NULL CHECK (event IN ('ADD', 'UPDATE', 'DELETE')),
    old_content text,
    new_content text,
    happened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, record_id, version)
);
CREATE INDEX record_history_by_user ON record_history (tenant_id, user_id);

CREATE VIEW memories AS
    SELECT id, tenant_id, session_id, content, embedding, kind, created_at, invalidated_at FROM records;

CREATE FUNCTION refuse_view_writes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the view % is read-only', TG_TABLE_NAME
        USING ERRCODE = 'feature_not_supported',
              HINT = 'write through pgmem: it keeps vectors, words and history in step';
END $$;
CREATE TRIGGER memories_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON memories
    FOR EACH ROW EXECUTE FUNCTION refuse_view_writes();

