/* The steps of a feed, one by one: read, gather, plan, compare, exchange, weigh, pack, cut for cp, share over pp and
 * tp.
 *
 *     09_steps
 *
 * Each step is a call of its own, so a framework can take one and leave the others. Sixteen ranks of this process are a
 * mesh of tp 2, cp 2, dp 2, pp 2. The ranks with tp 0 in the last stage own the data; the others get metadata, make
 * room, and receive arrays. At the end every rank compares its arrays with those of a feed, byte for byte. */
#include <ravel/feed.h>

#include <ravel/exchange.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16, TP = 2, CP = 2, DP = 2, PP = 2, SAMPLES = 48, BUDGET = 1024, COLUMNS = 3, MOST_STEPS = 256 };

/* One rank: its place, and what the steps hand on. */
typedef struct steps {
    ravel_comm *tp, *dp, *pp;
    ravel_mesh_coord at;
    ravel_plan_options plan_options;
    const ravel_samples *mine; /* read */
    int64_t counts[DP], all[SAMPLES * COLUMNS], lengths[SAMPLES];
    ravel_counts loss; /* of the update, over all ranks */
    ravel_plan *plan;
    ravel_exchange *exchange;
    ravel_ragged arrived;
    void *memory[3]; /* result and scratch of the exchange, weights */
    ravel_words words;
    ravel_meta meta;
    ravel_thd shape[MOST_STEPS]; /* sizes of this rank's shard of each micro-batch */
    int64_t tokens;              /* of all shards */
    int32_t *arrays;             /* [3][tokens]: tokens, labels, weights (f32) of all micro-batches */
} steps;

static int is_owner(const steps *s) {
    return s->at.tp == 0 && s->at.pp == PP - 1;
}

static ravel_status sum_over_dp(void *user, int64_t *values, size_t count, ravel_error *err) {
    return ravel_comm_allreduce(user, values, values, (int64_t)count, RAVEL_I64, RAVEL_SUM, err);
}

/* ---- decide: lengths in, plan out ------------------------------------------------------------------------ */

static ravel_status read_rows(steps *s, const ravel_source *source, ravel_reader *reader, ravel_error *err) {
    ravel_order order = {.size = sizeof order, .count = ravel_source_count(source), .shuffle = 1, .seed = 7};
    ravel_cursor cursor = {0, 0}, next;
    int64_t rows[SAMPLES], n = ravel_order_take(&order, cursor, SAMPLES, &next);
    int64_t begin = ravel_share(n, DP, s->at.dp), end = ravel_share(n, DP, s->at.dp + 1);
    ravel_order_rows(&order, cursor, begin, end - begin, rows);
    return ravel_reader_read(reader, rows, end - begin, &s->mine, err);
}

/* Length, row number and loss tokens of every sample, on every owner; and the counts that weights follow from. */
static ravel_status gather(steps *s, ravel_error *err) {
    const ravel_ragged *mine = &s->mine->ragged;
    const ravel_field *mask = &mine->fields[ravel_ragged_find(mine, "loss_mask")];
    int64_t columns[SAMPLES * COLUMNS];
    ravel_status status = ravel_gather_counts(s->dp, mine->count, s->counts, err);
    for (int64_t i = 0; i < mine->count && !status; i++) {
        columns[i * COLUMNS] = mine->offsets[i + 1] - mine->offsets[i];
        columns[i * COLUMNS + 1] = s->mine->rows[i];
        status = ravel_counts_sample(mine, i, mask, &columns[i * COLUMNS + 2], err);
    }
    if (!status) status = ravel_gather(s->dp, columns, s->counts, COLUMNS, s->all, err);
    if (!status) status = ravel_counts_add(mine, NULL, mask, NULL, &s->loss, err);
    return status ? status : ravel_counts_sum(&s->loss, &(ravel_sum_hook){sum_over_dp, s->dp}, err);
}

static ravel_status plan(steps *s, ravel_error *err) {
    int32_t homes[SAMPLES];
    int64_t n = 0;
    for (int32_t r = 0; r < DP; r++)
        for (int64_t i = 0; i < s->counts[r]; i++) homes[n++] = r;
    for (int64_t i = 0; i < n; i++) s->lengths[i] = s->all[i * COLUMNS];
    ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = s->lengths, .homes = homes};
    ravel_status status = ravel_plan_create(&input, &s->plan_options, &s->plan, err);
    return status ? status : ravel_compare(s->dp, s->plan->digest, err); /* before any data moves */
}

/* ---- move: every sample to its rank, and what this rank will have to all that need the shape ---------------- */

static ravel_status exchange(steps *s, ravel_error *err) {
    ravel_exchange_sizes sizes;
    ravel_status status = ravel_exchange_create(s->plan, s->counts, s->lengths, s->at.dp, NULL, &s->exchange, err);
    if (status) return status;
    ravel_exchange_measure(s->exchange, &s->mine->ragged, &sizes);
    s->memory[0] = malloc((size_t)sizes.result_bytes);
    s->memory[1] = malloc((size_t)sizes.scratch_bytes + 1);
    s->memory[2] = malloc(sizeof(float) * (size_t)sizes.tokens + 1);
    if (!s->memory[0] || !s->memory[1] || !s->memory[2]) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    return ravel_exchange_run(s->exchange, s->dp, &s->mine->ragged, s->memory[0], s->memory[1], &s->arrived, err);
}

/* The shape of this rank's micro-batches as one message. */
static ravel_status describe(steps *s, ravel_error *err) {
    int64_t bins[MOST_STEPS], lengths[SAMPLES], ids[SAMPLES], learnt[SAMPLES], parts[SAMPLES] = {0}, n = 0;
    const int32_t *numbers = ravel_exchange_samples(s->exchange);
    if (s->plan->micro_steps > MOST_STEPS) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "too many micro-steps");
    for (int64_t step = 0; step < s->plan->micro_steps; step++)
        n += bins[step] = ravel_plan_group(s->plan, step, s->at.dp).count;
    for (int64_t i = 0; i < n; i++) {
        const int64_t *row = s->all + (int64_t)numbers[i] * COLUMNS;
        lengths[i] = row[0], ids[i] = row[1], learnt[i] = row[2];
    }
    ravel_update_counts counts = {.micro_steps = s->plan->micro_steps, .samples = s->plan->stats.samples};
    ravel_meta meta = {.size = sizeof meta, .updates = 1, .micro_steps = s->plan->micro_steps, .samples = n};
    meta.counts = &counts, meta.loss_counts = &s->loss, meta.bin_samples = bins;
    meta.lengths = lengths, meta.ids = ids, meta.parts = parts, meta.loss_tokens = learnt;
    ravel_status status = ravel_words_resize(&s->words, ravel_meta_words(&meta), err);
    return status ? status : ravel_meta_encode(&meta, s->words.at, s->words.count, err);
}

/* From the last stage's tp rank 0 over pp, and on every stage over tp; then all know the shape. */
static ravel_status share_metadata(steps *s, ravel_error *err) {
    ravel_status status = s->at.tp == 0 ? ravel_share_words(s->pp, &s->words, PP - 1, err) : RAVEL_OK;
    if (!status) status = ravel_share_words(s->tp, &s->words, 0, err);
    return status ? status : ravel_meta_decode(s->words.at, s->words.count, &s->meta, err);
}

/* ---- pack, cut, share ------------------------------------------------------------------------------------- */

/* Sizes of every micro-batch, from the metadata alone; whole bins, or the shards of one cp rank. */
static ravel_status measure(const steps *s, int64_t step, int64_t first, int32_t cp_rank, ravel_thd *thd,
                            ravel_thd_options *options, ravel_error *err) {
    int64_t offsets[SAMPLES + 1] = {0};
    int32_t iota[SAMPLES];
    for (int64_t i = 0; i < s->meta.bin_samples[step]; i++) {
        iota[i] = (int32_t)i;
        offsets[i + 1] = offsets[i] + s->meta.lengths[first + i];
    }
    ravel_ragged bare = {.size = sizeof bare, .count = s->meta.bin_samples[step], .offsets = offsets};
    ravel_bin bin = {iota, bare.count};
    ravel_status status = ravel_thd_options_for_plan(&s->plan_options, 0, options, err);
    options->cp_rank = cp_rank;
    *thd = (ravel_thd){.size = sizeof *thd};
    return status ? status : ravel_thd_measure(&bare, &bin, options, thd, err);
}

static ravel_status make_room(steps *s, ravel_error *err) {
    ravel_thd_options options;
    ravel_status status = RAVEL_OK;
    for (int64_t step = 0, first = 0; step < s->meta.micro_steps && !status; first += s->meta.bin_samples[step++]) {
        status = measure(s, step, first, s->at.cp, &s->shape[step], &options, err);
        s->tokens += s->shape[step].local_tokens;
    }
    s->arrays = status ? NULL : calloc((size_t)s->tokens + 1, 3 * sizeof *s->arrays);
    return !status && !s->arrays ? ravel_error_set(err, RAVEL_E_MEMORY, "out of memory") : status;
}

/* A field of the arrived samples, packed whole and then cut for this cp rank. */
static ravel_status pack_and_cut(steps *s, const ravel_field *fields, int64_t step, int64_t first, int64_t token,
                                 ravel_error *err) {
    int32_t whole[3][CP * BUDGET], cu_slots[SAMPLES + 2] = {0}, list[SAMPLES];
    void *places[3] = {whole[0], whole[1], whole[2]};
    ravel_thd thd;
    ravel_thd_options options;
    ravel_cp cp = {CP, RAVEL_CP_ZIGZAG};
    ravel_ragged store = s->arrived;
    store.fields = fields, store.field_count = 3;
    for (int64_t i = 0; i < s->meta.bin_samples[step]; i++) list[i] = (int32_t)(first + i);
    ravel_bin bin = {list, s->meta.bin_samples[step]};
    ravel_status status = measure(s, step, first, -1, &thd, &options, err);
    thd.fields = places, thd.cu_seqlens_padded = cu_slots;
    if (!status) status = ravel_thd_pack(&store, &bin, &options, &thd, err);
    for (int f = 0; f < 3 && !status; f++)
        status = ravel_cp_gather(&cp, s->at.cp, cu_slots, thd.sequences, whole[f], sizeof(int32_t),
                                 s->arrays + f * s->tokens + token, NULL, err);
    return status;
}

static ravel_status pack(steps *s, ravel_error *err) {
    const ravel_field *tokens = &s->arrived.fields[ravel_ragged_find(&s->arrived, "tokens")];
    const ravel_field *mask = &s->arrived.fields[ravel_ragged_find(&s->arrived, "loss_mask")];
    const ravel_field fields[] = {
        *tokens,
        {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = tokens->data, .pad = -100},
        {.name = "weights", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = s->memory[2]}};
    ravel_weights_options options;
    ravel_weights_options_default(&options);
    options.dp = DP, options.cp = CP, options.micro_steps = s->meta.micro_steps;
    ravel_status status =
        ravel_weights_fill(&s->arrived, NULL, mask, NULL, &s->loss, &options, RAVEL_F32, s->memory[2], err);
    for (int64_t step = 0, first = 0, token = 0; step < s->meta.micro_steps && !status; step++) {
        status = pack_and_cut(s, fields, step, first, token, err);
        first += s->meta.bin_samples[step];
        token += s->shape[step].local_tokens;
    }
    return status;
}

/* Cut first, then sent: to the first stage over pp, and on both stages over tp. */
static ravel_status share_arrays(steps *s, ravel_error *err) {
    static const int32_t wants[PP] = {1, 0};
    int64_t bytes = 3 * s->tokens * (int64_t)sizeof *s->arrays;
    ravel_status status = s->at.tp == 0 ? ravel_share_bytes(s->pp, s->arrays, bytes, wants, PP - 1, err) : RAVEL_OK;
    return status ? status : ravel_share_bytes(s->tp, s->arrays, bytes, NULL, 0, err);
}

static ravel_status run_steps(steps *s, const ravel_source *source, ravel_reader *reader, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (is_owner(s)) {
        status = read_rows(s, source, reader, err);
        if (!status) status = gather(s, err);
        if (!status) status = plan(s, err);
        if (!status) status = exchange(s, err);
        if (!status) status = describe(s, err);
    }
    if (!status) status = share_metadata(s, err);
    if (!status) status = make_room(s, err);
    if (!status && is_owner(s)) status = pack(s, err);
    return status ? status : share_arrays(s, err);
}

/* ---- the same by a feed ----------------------------------------------------------------------------------- */

static ravel_status compare(const steps *s, ravel_feed *feed, ravel_error *err) {
    const ravel_feed_update *update;
    ravel_micro_batch micro;
    int64_t token = 0, step = 0;
    ravel_status status = ravel_feed_next(feed, &update, err);
    if (status) return status;
    for (ravel_feed_iter iter = ravel_feed_iterate(feed, 0); ravel_feed_iter_next(&iter, &micro); step++) {
        const void *theirs[] = {micro.tokens, micro.labels, micro.weights};
        for (int f = 0; f < 3; f++)
            if (step >= s->meta.micro_steps || micro.thd->local_tokens != s->shape[step].local_tokens ||
                memcmp(theirs[f], s->arrays + f * s->tokens + token, 4 * (size_t)micro.thd->local_tokens) != 0)
                return ravel_error_set(err, RAVEL_E_INTERNAL, "micro-step %" PRId64 " is not the feed's", step);
        token += micro.thd->local_tokens;
    }
    if (s->at.cp == 0 && s->at.dp == 0)
        printf("stage %d, tp %d: %" PRId64 " micro-batches, %" PRId64 " tokens, as the feed makes them\n", s->at.pp,
               s->at.tp, step, token);
    return step == s->meta.micro_steps ? RAVEL_OK : ravel_error_set(err, RAVEL_E_INTERNAL, "other micro-steps");
}

static ravel_status compare_with_feed(const steps *s, ravel_mesh *mesh, const ravel_source *source,
                                      const ravel_plan_options *plan_options, ravel_error *err) {
    ravel_feed_options options;
    ravel_feed *feed = NULL;
    ravel_feed_options_default(&options);
    options.plan = plan_options;
    options.samples = SAMPLES;
    options.updates = 1;
    options.shuffle = 1;
    options.shuffle_seed = 7;
    options.ask = 1; /* both stages get everything */
    ravel_status status = ravel_feed_create(mesh, source, &options, &feed, err);
    if (!status) status = compare(s, feed, err);
    ravel_feed_free(feed);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    const ravel_source *source = user;
    ravel_mesh_options mesh_options;
    ravel_mesh *mesh = NULL;
    ravel_reader *reader = NULL;
    steps *s = calloc(1, sizeof *s);
    if (!s) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    ravel_mesh_options_default(&mesh_options);
    mesh_options.tp = TP, mesh_options.cp = CP, mesh_options.pp = PP;
    ravel_plan_options_default(&s->plan_options);
    s->plan_options.budget = BUDGET, s->plan_options.dp = DP, s->plan_options.cp = CP;
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_reader_create(source, NULL, NULL, &reader, err);
    if (!status) {
        s->at = ravel_mesh_coords(mesh);
        s->tp = ravel_mesh_comm(mesh, RAVEL_AXIS_TP);
        s->dp = ravel_mesh_comm(mesh, RAVEL_AXIS_DP);
        s->pp = ravel_mesh_comm(mesh, RAVEL_AXIS_PP);
        status = run_steps(s, source, reader, err);
    }
    if (!status) status = compare_with_feed(s, mesh, source, &s->plan_options, err);
    for (int i = 0; i < 3; i++) free(s->memory[i]);
    free(s->arrays);
    ravel_words_free(&s->words);
    ravel_exchange_free(s->exchange);
    ravel_plan_free(s->plan);
    ravel_reader_free(reader);
    ravel_mesh_free(mesh);
    free(s);
    return status;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_source_options_default(&options);
    options.mock = "{\"type\":\"lognormal\",\"max_seq_len\":1800,\"mean_seq_len\":500,\"prompt_share\":0.3}";
    ravel_status status = ravel_source_open(&options, &source, &err);
    if (!status) status = ravel_threads_run(RANKS, NULL, work, source, &err);
    if (status) (void)fprintf(stderr, "%s\n", err.message);
    ravel_source_free(source);
    return status != RAVEL_OK;
}
