/* A trainer that lies: it keeps and changes what was never received, counts wrongly, cuts its records, sends after its END. No lie is
 * committed, the generator holds what it held, and takes the same version from the same trainer when it tells the truth. */
#include "tests/unit/refit_case.h"

#include "base/sparse.h"
#include "base/xxh3.h"
#include "comm/link/link.h"
#include "refit/wire/pull_wire.h"

#include <ravel/publish.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 1000, ROOM = N + 8, STEPS = 5, WAITING = 4 };

typedef enum twist { HONEST, HASH, SHORT, LONG, EMPTY, OTHER } twist;

/* A message about `count` elements. */
typedef struct lie_step {
    uint32_t kind;
    uint64_t count;
    twist twist;
} lie_step;

typedef struct lie {
    int32_t version; /* 1: the first that the generator sees */
    ravel_status status;
    const char *words;
    lie_step steps[STEPS];
} lie;

typedef struct liar {
    char address[64];
    ravel__hub *hub;
    unsigned char *directory;
    size_t directory_bytes;
    uint64_t session;
    unsigned char body[4096];
    float weights[3][ROOM]; /* by version */
    const lie *_Atomic lie; /* NULL: the truth */
    _Atomic int64_t version;
    _Atomic int32_t stop;
    ravel__link *waiting[WAITING]; /* for a newer version */
    uint64_t ids[WAITING];
    int32_t count;
    pthread_t thread;
} liar;

/* ---- what it sends --------------------------------------------------------------------------------------- */

static void send_message(ravel__link *link, uint32_t kind, uint64_t id, const void *body, size_t bytes) {
    ravel__message head = {.kind = kind, .id = id, .bytes = (int64_t)bytes};
    (void)ravel__link_send(link, &head, body, NULL, NULL);
}

static void send_step(const liar *l, ravel__link *link, const lie_step *s) {
    const float *fresh = l->weights[atomic_load(&l->version)], *base = l->weights[atomic_load(&l->version) - 1];
    unsigned char records[4 * ROOM + 1] = {0};
    size_t changed, bytes = s->count <= ROOM ? (size_t)s->count * sizeof *fresh : 0;
    if (s->kind == RAVEL__PULL_KEEP) return send_message(link, s->kind, s->count, NULL, 0);
    if (s->kind == RAVEL__PULL_BLOCK) return send_message(link, s->kind, ravel__xxh3_of(fresh, bytes), fresh, bytes);
    if (s->kind != RAVEL__PULL_SPARSE) return send_message(link, s->kind, 0, records, s->twist == LONG);
    size_t size = ravel__sparse_encode(base, fresh, (size_t)s->count, sizeof *fresh, records, &changed);
    if (!EXPECT(size > 8)) return;
    if (s->twist == OTHER) records[0] ^= 1;
    size = s->twist == EMPTY ? 0 : size - (s->twist == SHORT) + (s->twist == LONG);
    send_message(link, s->kind, ravel__xxh3_of(fresh, bytes) ^ (s->twist == HASH), records, size);
}

static void answer_pull(const liar *l, ravel__link *link) {
    static const lie_step truth[STEPS] = {{RAVEL__PULL_BLOCK, N, HONEST}, {RAVEL__PULL_END, 0, HONEST}};
    const lie *told = atomic_load(&l->lie);
    const lie_step *steps = told ? told->steps : truth;
    for (int i = 0; i < STEPS && steps[i].kind; i++) send_step(l, link, &steps[i]);
}

static void answer_watches(liar *l) {
    int64_t version = atomic_load(&l->version);
    ravel__versions v = {.session = l->session, .count = 1, .list = {{version, 7 + (uint64_t)version, 1}}};
    for (; l->count > 0; l->count--)
        send_message(l->waiting[l->count - 1], RAVEL__PULL_VERSIONS, l->ids[l->count - 1], &v,
                     (size_t)ravel__versions_bytes(1));
}

static void *place(void *user, ravel__link *link, const ravel__message *head) {
    (void)link;
    return head->bytes <= (int64_t)sizeof((liar *)user)->body ? ((liar *)user)->body : NULL;
}

static void message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    liar *l = user;
    (void)body;
    if (head->kind == RAVEL__PULL_DIRECTORY)
        send_message(link, RAVEL__PULL_DIRECTORY, head->id, l->directory, l->directory_bytes);
    if (head->kind == RAVEL__PULL_PULL) answer_pull(l, link);
    if (head->kind != RAVEL__PULL_WATCH || l->count == WAITING) return;
    l->waiting[l->count] = link;
    l->ids[l->count++] = head->id;
}

static void down(void *user, ravel__link *link, const char *why) {
    liar *l = user;
    (void)why;
    for (int32_t i = 0; i < l->count; i++)
        if (l->waiting[i] == link) l->waiting[i--] = l->waiting[--l->count];
}

static void *serve(void *user) {
    liar *l = user;
    while (!atomic_load(&l->stop)) {
        if (ravel__hub_poll(l->hub, .01, NULL, NULL) != RAVEL_OK) break;
        answer_watches(l);
    }
    return NULL;
}

static bool liar_open(liar *l, const ravel_refit_tensor *tensor) {
    static ravel__sender sender;
    const ravel__hub_handler handler = {l, NULL, place, message, NULL, down};
    ravel__hub_options o;
    ravel__arena arena;
    ravel__holding h = {0};
    ravel__directory_builder b;
    ravel__differences list;
    ravel__directory d;
    unsigned char *manifest = NULL;
    size_t size = 0;
    (void)snprintf(l->address, sizeof l->address, "unix:@ravel-liar-%d", (int)getpid());
    ravel__hub_options_default(&o);
    o.listen = l->address;
    memcpy(sender.addresses, l->address, sizeof l->address);
    ravel__arena_init(&arena, NULL, 4096);
    ravel__directory_begin(&b, NULL);
    ravel__differences_init(&list, NULL);
    bool fine = EXPECT(ravel__holding_make(tensor, 1, NULL, 0, 0, "x", &arena, &h, NULL) == RAVEL_OK) &&
                EXPECT(ravel__manifest_make(&h, -1, NULL, &manifest, &size, NULL) == RAVEL_OK) &&
                EXPECT(ravel__directory_add(&b, 0, manifest, size, &list, NULL) == RAVEL_OK) &&
                EXPECT(ravel__directory_encode(&b, &sender, 1, &l->directory, &l->directory_bytes, NULL) == RAVEL_OK) &&
                EXPECT(ravel__directory_decode(l->directory, l->directory_bytes, NULL, &d, NULL) == RAVEL_OK);
    free(manifest);
    ravel__directory_end(&b);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
    if (!fine) return false;
    l->session = d.digest;
    ravel__directory_free(&d);
    return EXPECT(ravel__hub_open(&o, &handler, &l->hub, NULL) == RAVEL_OK) &&
           EXPECT(pthread_create(&l->thread, NULL, serve, l) == 0);
}

/* ---- what becomes of it ---------------------------------------------------------------------------------- */

/* clang-format off */
#define DATA(n) \
    { RAVEL__PULL_BLOCK, n, HONEST }
#define KEEP(n) \
    { RAVEL__PULL_KEEP, n, HONEST }
#define CHANGE(n, t) \
    { RAVEL__PULL_SPARSE, n, t }
#define END \
    { RAVEL__PULL_END, 0, HONEST }

static const lie lies[] = {
    {1, RAVEL_E_DATA, "it was not told are held", {KEEP(N), END}},
    {1, RAVEL_E_DATA, "it was not told are held", {CHANGE(N, HONEST), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {KEEP(N + 1), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {KEEP(0), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {KEEP(UINT64_MAX), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {KEEP(UINT64_MAX / 4 + 2), END}},
    {2, RAVEL_E_DATA, "ended before everything was sent", {KEEP(N - 1), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {DATA(N), DATA(4), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {DATA(N), KEEP(1), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {CHANGE(N + 1, HONEST), END}},
    {2, RAVEL_E_DATA, "ended before everything was sent", {CHANGE(N - 1, HONEST), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {CHANGE(N, HONEST), CHANGE(N, HONEST), END}},
    {2, RAVEL_E_DATA, "does not continue the one before", {KEEP(1), CHANGE(N, HONEST), END}},
    {2, RAVEL_E_DATA, "its records end early", {CHANGE(N, SHORT), END}},
    {2, RAVEL_E_DATA, "bytes are left", {CHANGE(N, LONG), END}},
    {2, RAVEL_E_MEMORY, "a block", {CHANGE(N, EMPTY), END}},
    {2, RAVEL_E_CHECKSUM, "arrived changed", {CHANGE(N - 1, OTHER), END}},
    {2, RAVEL_E_CHECKSUM, "arrived changed", {CHANGE(N, HASH), END}},
    {2, RAVEL_E_DATA, "unknown kind", {{77, 0, HONEST}}},
    {2, RAVEL_E_DATA, "too long", {{RAVEL__PULL_END, 0, LONG}}},
    {2, RAVEL_OK, "", {CHANGE(N, HONEST), END, KEEP(N), CHANGE(N, HASH), {77, 0, LONG}}}, /* what comes after the end is nothing */
};
/* clang-format on */

static bool holds(const liar *l, const ravel_puller *p, int64_t version) {
    return ravel_puller_identity(p).version == version &&
           (version == 0 || memcmp(ravel_puller_data(p, 0), l->weights[version], N * sizeof(float)) == 0);
}

static ravel_status pull(ravel_puller *p, ravel_error *err) {
    ravel_status status = ravel_puller_wait(p, 60, err);
    return status == RAVEL_OK ? ravel_puller_commit(p, NULL, err) : status;
}

static bool try_lie(liar *l, const lie *told, int32_t stage) {
    float to[N] = {0};
    ravel_refit_tensor t = float_tensor("w", to, N);
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_pull_options o;
    ravel_comm *self = NULL;
    ravel_puller *p = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_pull_options_default(&o);
    o.threads = 1;
    o.stage = stage;
    atomic_store(&l->lie, NULL);
    atomic_store(&l->version, 1);
    bool fine = EXPECT(ravel_comm_self(NULL, &self, &err) == RAVEL_OK) &&
                EXPECT(ravel_puller_create(self, l->address, &sink, &o, &p, &err) == RAVEL_OK);
    if (fine && told->version == 2) fine = EXPECT(pull(p, &err) == RAVEL_OK) && EXPECT(holds(l, p, 1));
    atomic_store(&l->lie, told);
    atomic_store(&l->version, told->version);
    if (fine) {
        ravel_status status = pull(p, &err);
        fine = EXPECT(status == told->status) && EXPECT(strstr(err.message, told->words) != NULL) &&
               EXPECT(holds(l, p, status == RAVEL_OK ? told->version : told->version - 1));
        if (!fine) printf("    %s: %s\n", ravel_status_name(status), err.message);
    }
    ravel_error_clear(&err);
    atomic_store(&l->lie, NULL);
    if (fine && told->status != RAVEL_OK)
        fine = EXPECT(pull(p, &err) == RAVEL_OK) && EXPECT(holds(l, p, told->version));
    ravel_puller_free(p);
    ravel_comm_free(self);
    return fine;
}

TEST(refit_pull_from_a_trainer_that_lies) {
    static liar l;
    float *first = l.weights[1], *second = l.weights[2];
    ravel_refit_tensor t = float_tensor("w", first, N);
    memset(&l, 0, sizeof l);
    for (int i = 0; i < ROOM; i++) l.weights[0][i] = second[i] = (float)(i % 50 ? i : -i - 1), first[i] = (float)i;
    CHECK(liar_open(&l, &t));
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        for (int32_t stage = 0; stage < 3; stage++)
            if (!try_lie(&l, &lies[i], stage)) check_fail(__FILE__, __LINE__, "lie %zu, stage %d", i, stage);
    atomic_store(&l.stop, 1);
    (void)pthread_join(l.thread, NULL);
    ravel__hub_free(l.hub);
    free(l.directory);
}
