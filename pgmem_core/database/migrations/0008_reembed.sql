-- Two embedding models side by side, while the rows of the one are moved over to the other.

ALTER TABLE embedding_models
    -- target: the one that rows are being moved to; retired: moved away from, nothing may be written as its any more.
    ADD COLUMN status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'target', 'retired')),
    -- Of a target, how far its rows have been claimed, by key. What a killed process had claimed is found by the
    -- next walk from the start.
    ADD COLUMN claimed_tenant text NOT NULL DEFAULT '',
    ADD COLUMN claimed_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';

-- Of a trigger that stands on records for each retired model: a client that has not heard of it is refused.
CREATE FUNCTION refuse_retired_model() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'embedder % is retired: the vectors of this store are those of % now',
        (SELECT quote_literal(m.name) FROM embedding_models m WHERE m.id = NEW.model),
        (SELECT coalesce(string_agg(quote_literal(m.name), ' and ' ORDER BY m.created_at), 'another')
         FROM embedding_models m WHERE m.source = 'embedder' AND m.status <> 'retired')
        USING ERRCODE = 'PGM04';
END $$;
