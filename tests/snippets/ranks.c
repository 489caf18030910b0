#include <ravel/ravel.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ravel_status work_mesh(ravel_comm *comm, void *user, ravel_error *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    //@ include/ravel/mesh.h 1
    assert(!err.status && stage >= 0 && stage < 3);
    return err.status;
}

static ravel_status exchange(ravel_comm *dp, void *user, ravel_error *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    int32_t rank = ravel_comm_rank(dp), size = ravel_comm_size(dp);
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    static const int64_t offsets[] = {0, 2, 5}, mine_lengths[] = {2, 3};
    const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = ids}};
    const ravel_ragged mine = {.size = sizeof mine, .count = 2, .offsets = offsets, .fields = fields, .field_count = 1};
    int64_t counts[2] = {2, 2}, lengths[4] = {0};
    ravel_plan_options options;
    ravel_plan_options_default(&options);
    options.budget = 8;
    options.dp = size;
    const ravel_plan_input input = {.size = sizeof input, .count = 4, .lengths = lengths};
    ravel_plan *plan = NULL;
    ravel_exchange *x = NULL;
    ravel_exchange_sizes sizes;
    static _Thread_local _Alignas(256) char result[1 << 16], scratch[1 << 16];
    ravel_ragged arrived;
    //@ include/ravel/exchange.h 1
    assert(!err.status && sizes.result_bytes <= (int64_t)sizeof result && arrived.count >= 1);
    ravel_exchange_free(x);
    ravel_plan_free(plan);
    return err.status;
}

static const char rows_of_data[] =
    "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n{\"input_ids\": [6, 7, 8, 9]}\n";
static int64_t used;
static void use(const ravel_ragged *ragged) {
    used += ragged->count;
}

static int source_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *samples;
    ravel_order order = {.size = sizeof order, .count = 3};
    ravel_cursor cursor = {0, 0};
    int64_t begin = 0, count = 3, rows[3];
#define more (used < 3)
    //@ include/ravel/source.h 1
#undef more
    assert(!err.status && used == 3);
    return 0;
}

static int order_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    ravel_source_options options;
    int64_t rows[512];
    const int32_t dp = 2, rank = 1;
    ravel_source_options_default(&options);
    options.data = "train.jsonl";
    if (ravel_source_open(&options, &source, &err)) return 1;
    //@ include/ravel/order.h 1
    assert(end > begin);
    ravel_source_free(source);
    return 0;
}

static void run(const ravel_micro_batch *micro) {
    assert(micro->thd->samples_count >= 0);
}

static ravel_status feed_header(ravel_comm *comm, void *user, ravel_error *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    const ravel_source *source = user;
    ravel_mesh_options mesh_options;
    ravel_plan_options plan_options;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *update;
    ravel_micro_batch micro;
    const int32_t vpp = 1;
    ravel_mesh_options_default(&mesh_options);
    ravel_plan_options_default(&plan_options);
    plan_options.budget = 64;
    plan_options.layout = RAVEL_LAYOUT_PADDED;
    if (ravel_mesh_create(comm, &mesh_options, &mesh, &err)) return 1;
#define ravel_feed_create(m, s, o, f, e) ((o)->updates = 2, ravel_feed_create(m, s, o, f, e))
    //@ include/ravel/feed.h 1
    ravel_mesh_free(mesh);
    return RAVEL_OK;
}

//@ include/ravel/comm.h 1 :functions

static int comm_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    //@ include/ravel/comm.h 1 :statements
    return err.status;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    ravel_source_options options;
    FILE *f = fopen("train.jsonl", "w");
    if (!f || fputs(rows_of_data, f) < 0 || fclose(f)) return 1;
    ravel_source_options_default(&options);
    options.mock = "{\"type\":\"lognormal\",\"max_seq_len\":32,\"mean_seq_len\":8}";
    int failed = source_header() || order_header() || comm_header() || ravel_source_open(&options, &source, &err) ||
                 ravel_threads_run(6, NULL, work_mesh, NULL, &err) ||
                 ravel_threads_run(2, NULL, exchange, NULL, &err) ||
                 ravel_threads_run(2, NULL, feed_header, source, &err);
    if (err.status) fprintf(stderr, "%s\n", err.message);
    ravel_source_free(source);
    return failed;
}
