/* What trainers send to a puller that has asked: any messages in any order, whole blocks, blocks that stay and changes of blocks, into
 * a stage of each kind. The first byte: the kind of stage, and whether a version is held. Then messages: a byte for the kind and
 * whether the hash is made right, one for the length, two where a body is long, and the body. The source is included for its
 * functions on one worker, of which the library has none without threads and links. */
#include "refit/pull/pull_work.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { A = 48, B = 300, FLOATS = A + B / 2 + 1 };

static void must(int condition) {
    if (!condition) abort();
}

/* A matrix, of which this rank has the lower half of the rows, as two of bf16 travel that stay f32 here; and a vector. */
typedef struct world {
    float sets[2][FLOATS];
    ravel_refit_tensor tensors[2], theirs[2];
    ravel__arena arena;
    ravel__holding source;
    ravel_puller p;
    unsigned char *directory;
} world;

static void describe(world *w) {
    w->tensors[0] = (ravel_refit_tensor){.name = "a",
                                         .dtype = RAVEL_F32,
                                         .ndim = 2,
                                         .dims = {16, 6},
                                         .parts = {2},
                                         .index = {1},
                                         .data = w->sets[0],
                                         .spare = w->sets[1]};
    w->tensors[1] = (ravel_refit_tensor){
        .name = "b", .dtype = RAVEL_BF16, .ndim = 1, .dims = {B}, .data = w->sets[0] + A, .spare = w->sets[1] + A};
    memcpy(w->theirs, w->tensors, sizeof w->theirs);
    w->theirs[0].parts[0] = w->theirs[0].index[0] = 0;
    w->theirs[0].dtype = RAVEL_BF16; /* the narrower one travels */
}

static void plan_it(world *w) {
    static const ravel__sender sender[] = {{2, 0, 0, 0, "host:7"}};
    ravel__directory_builder b;
    ravel__differences list;
    unsigned char *manifest = NULL;
    size_t size, bytes;
    ravel__refit_plan_place place_of = {.machine = 1, .cast = RAVEL_REFIT_NARROW, .self = -1, .who = "here"};
    ravel__differences_init(&list, NULL);
    ravel__directory_begin(&b, NULL);
    must(ravel__holding_make(w->theirs, 2, NULL, 0, 0, "x", &w->arena, &w->source, NULL) == RAVEL_OK);
    must(ravel__manifest_make(&w->source, -1, NULL, &manifest, &size, NULL) == RAVEL_OK);
    must(ravel__directory_add(&b, 0, manifest, size, &list, NULL) == RAVEL_OK);
    must(ravel__directory_encode(&b, sender, 1, &w->directory, &bytes, NULL) == RAVEL_OK);
    ravel__directory_end(&b);
    free(manifest);
    must(ravel__directory_decode(w->directory, bytes, NULL, &w->p.directory, NULL) == RAVEL_OK);
    must(ravel__refit_plan_make(&w->p.directory, &w->p.holding, &place_of, NULL, &w->p.plan, &list, NULL) == RAVEL_OK);
    must(w->p.plan.want_count > 0 && list.count == 0);
}

static void open_world(world *w, int stage, int holds) {
    ravel_refit_options o;
    describe(w);
    ravel__arena_init(&w->arena, NULL, 4096);
    ravel_refit_options_default(&o);
    o.stage = stage;
    ravel__counted_init(&w->p.memory, NULL);
    w->p.sink_copy = (ravel_refit_sink){.size = sizeof w->p.sink_copy, .tensors = w->tensors, .count = 2};
    must(ravel__holding_make(w->tensors, 2, NULL, 0, 0, "sink", &w->arena, &w->p.holding, NULL) == RAVEL_OK);
    must(ravel__stage_init(&w->p.stage, &w->p.sink_copy, &w->p.holding, &o, NULL, NULL) == RAVEL_OK);
    plan_it(w);
    const ravel_refit_identity first = {.version = 1, .nonce = 5}, next = {.version = 2, .nonce = 6};
    for (int k = 0; k < 1 + holds; k++) {
        must(ravel__stage_begin(&w->p.stage, k ? next : first, NULL) == RAVEL_OK);
        if (k < holds) must(ravel__stage_commit(&w->p.stage, NULL) == RAVEL_OK);
    }
    if (holds) w->p.base = first;
}

static void close_world(world *w) {
    (void)ravel__stage_abort(&w->p.stage, NULL);
    ravel__stage_free(&w->p.stage);
    ravel__refit_plan_free(&w->p.plan);
    ravel__directory_free(&w->p.directory);
    ravel__holding_free(&w->p.holding, NULL);
    ravel__holding_free(&w->source, NULL);
    ravel__arena_free(&w->arena);
    free(w->directory);
}

/* What the elements of the block at hand become by these changes of the live version; 0 where they are none. */
static uint64_t hash_of_changes(worker *w, const uint8_t *body, size_t bytes) {
    unsigned char elements[B * 8];
    ravel__sparse changes;
    int64_t each = ravel__intake_is_over(&w->in) ? 0 : ravel_dtype_bytes(ravel__intake_dtype(&w->in));
    size_t count = ravel__sparse_count(body, bytes, NULL);
    if (!each || count == 0 || count > B || ravel__intake_elements(&w->in, (int64_t)count * each) == 0) return 0;
    ravel__refit_span span = ravel__intake_span(&w->in, (int64_t)count);
    must(ravel__stage_read_live(&w->puller->stage, &span, ravel__intake_dtype(&w->in), elements, NULL) == RAVEL_OK);
    if (ravel__sparse_open(&changes, body, bytes, count, (size_t)each, NULL)) return 0;
    if (ravel__sparse_apply(&changes, elements, 0, count, NULL)) return 0;
    return ravel__xxh3_of(elements, count * (size_t)each);
}

/* One message out of the input; the bytes that it took, 0: none is left. */
static size_t send_one(worker *w, const uint8_t *at, size_t left) {
    static const uint32_t kinds[] = {RAVEL__PULL_BLOCK, RAVEL__PULL_KEEP,   RAVEL__PULL_SPARSE, RAVEL__PULL_END,
                                     RAVEL__PULL_BLOCK, RAVEL__PULL_FAILED, RAVEL__PULL_SPARSE, RAVEL__PULL_REPORT};
    if (left < 2) return 0;
    size_t used = 2, bytes = at[1];
    if (bytes == 255 && left >= 4) bytes = at[2] | (size_t)at[3] << 8, used = 4;
    ravel__message head = {.kind = kinds[at[0] % 8], .id = bytes};
    if (bytes > left - used) bytes = left - used;
    if (head.kind == RAVEL__PULL_KEEP) bytes = 0; /* its id says how many elements */
    head.bytes = (int64_t)bytes;
    if (at[0] & 8 && bytes)
        head.id = head.kind == RAVEL__PULL_SPARSE && w->puller->base.version ? hash_of_changes(w, at + used, bytes)
                                                                             : ravel__xxh3_of(at + used, bytes);
    void *to = head.bytes ? place(w, &head) : NULL;
    if (to) memcpy(to, at + used, bytes);
    message(w, &head, to);
    return used + bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const int stages[] = {RAVEL_REFIT_SPARE, RAVEL_REFIT_COPY, RAVEL_REFIT_UNDO};
    if (bytes < 1) return 0;
    world *w = calloc(1, sizeof *w);
    must(w != NULL);
    open_world(w, stages[data[0] % 3], data[0] / 3 % 2);
    const ravel__pull_task task = {0, 0, w->p.plan.want_count};
    worker k = {.puller = &w->p, .task = &task};
    k.in = (ravel__intake){
        .plan = &w->p.plan, .count = task.count, .based = w->p.base.version > 0, .role = "trainer rank"};
    for (size_t at = 1, used; (used = send_one(&k, data + at, bytes - at)) > 0;) at += used;
    must(k.status == RAVEL_OK ? k.in.at <= task.count : k.why.message[0] != '\0');
    ravel__release(&w->p.memory.allocator, k.scratch, k.scratch_room);
    close_world(w);
    free(w);
    return 0;
}
