/* The parts of publish and pull: directory, plan of a pull, store, messages. */
#include "tests/unit/refit_case.h"

#include "base/system/clock.h"
#include "refit/model/plan.h"
#include "refit/publish/store.h"
#include "refit/wire/pull_wire.h"

#include <stdlib.h>

/* ---- directory and plan --------------------------------------------------------------------------------- */

/* All senders' and receivers' holdings of a random case, and the directory made of them. */
typedef struct world {
    refit_case c;
    case_side sides[2][CASE_RANKS];
    ravel__arena arena;
    ravel__holding from[CASE_RANKS], to[CASE_RANKS];
    unsigned char *bytes;
    size_t size;
    ravel__directory directory;
} world;

static bool make_world(world *w, ravel__rng *rng) {
    static const ravel__sender senders[CASE_RANKS] = {{1, 0, 0, 0, "unix:@a"},
                                                      {1, 0, 0, 0, ":1,:2"},
                                                      {2, 0, 0, 0, "host:7"},
                                                      {3, 0, 0, 0, "[::1]:9"},
                                                      {2, 0, 0, 0, "e"}};
    ravel__directory_builder b;
    ravel__differences list;
    memset(w, 0, sizeof *w);
    case_random(&w->c, rng);
    w->c.both = 0;
    ravel__arena_init(&w->arena, NULL, 4096);
    ravel__directory_begin(&b, NULL);
    ravel__differences_init(&list, NULL);
    for (int32_t r = 0; r < w->c.senders + w->c.receivers; r++) {
        int side = r >= w->c.senders;
        int32_t number = side ? r - w->c.senders : r;
        case_side *s = &w->sides[side][number];
        ravel__holding *h = side ? &w->to[number] : &w->from[number];
        if (!case_side_make(&w->c, side, r, 0, s)) return false;
        if (ravel__holding_make(s->tensors, s->count, NULL, 0, 0, "x", &w->arena, h, NULL) != RAVEL_OK) return false;
        if (side) continue;
        size_t size;
        unsigned char *manifest = NULL;
        if (ravel__manifest_make(h, -1, NULL, &manifest, &size, NULL) != RAVEL_OK) return false;
        ravel_status status = ravel__directory_add(&b, number, manifest, size, &list, NULL);
        free(manifest);
        if (status != RAVEL_OK || list.count > 0) return false;
    }
    ravel_status status = ravel__directory_encode(&b, senders, w->c.senders, &w->bytes, &w->size, NULL);
    ravel__directory_end(&b);
    return status == RAVEL_OK && ravel__directory_decode(w->bytes, w->size, NULL, &w->directory, NULL) == RAVEL_OK;
}

static void free_world(world *w) {
    for (int side = 0; side < 2; side++)
        for (int32_t r = 0; r < CASE_RANKS; r++) {
            ravel__holding_free(side ? &w->to[r] : &w->from[r], NULL);
            case_side_free(&w->sides[side][r]);
        }
    ravel__directory_free(&w->directory);
    ravel__arena_free(&w->arena);
    free(w->bytes);
}

/* Whether the sender has the whole piece. */
static bool has(const ravel__holding *holding, const char *name, const ravel__box *piece) {
    for (int64_t i = 0; i < holding->count; i++) {
        ravel__box meet;
        if (strcmp(holding->items[i].name, name) != 0) continue;
        return ravel__box_meet(&holding->items[i].view.box, piece, &meet) && ravel__box_equal(&meet, piece);
    }
    return false;
}

/* Every element of every item is wanted exactly once, from a sender that has it. */
static bool covers_once(const world *w, const ravel__holding *sink, const ravel__refit_plan *plan) {
    for (int64_t i = 0; i < sink->count; i++) {
        const ravel__box *box = &sink->items[i].view.box;
        int64_t covered = 0;
        ravel__box seen[64];
        int32_t count = 0;
        for (int32_t s = 0; s < plan->senders; s++)
            for (int64_t k = plan->first_want[s]; k < plan->first_want[s + 1]; k++) {
                ravel__box meet;
                if (plan->wants[k].item != i) continue;
                const ravel__piece *piece = plan->wants[k].piece;
                if (!has(&w->from[s], sink->items[i].name, &piece->box)) return false;
                for (int32_t o = 0; o < count; o++)
                    if (ravel__box_meet(&seen[o], &piece->box, &meet)) return false;
                if (count < 64) seen[count++] = piece->box;
                covered += piece->count;
            }
        if (covered != ravel__box_count(box)) return false;
    }
    return true;
}

TEST(refit_pull_plan_wants_everything_once) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    static world w;
    for (int round = 0; round < check_rounds(300, 3000); round++) {
        CHECK(make_world(&w, &rng));
        for (int32_t r = 0; r < w.c.receivers; r++) {
            ravel__refit_plan_place place = {.machine = ravel__rng_below(&rng, 6), .turn = ravel__rng_below(&rng, 100)};
            ravel__differences list;
            ravel__refit_plan plan;
            ravel_error err = RAVEL_ERROR_INIT;
            place.cast = w.c.options.cast;
            place.self = -1;
            place.who = "here";
            ravel__differences_init(&list, NULL);
            CHECK_OK(ravel__refit_plan_make(&w.directory, &w.to[r], &place, NULL, &plan, &list, &err), &err);
            CHECK_EQ(list.count, 0);
            CHECK(covers_once(&w, &w.to[r], &plan));
            ravel__refit_plan_free(&plan);
        }
        free_world(&w);
    }
}

TEST(refit_directory_refuses_what_was_changed) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    static world w;
    ravel__directory d;
    CHECK(make_world(&w, &rng));
    CHECK_STR(w.directory.addresses[0], "unix:@a");
    for (size_t i = 0; i < w.size; i++) {
        w.bytes[i] ^= 0x10;
        CHECK(ravel__directory_decode(w.bytes, w.size, NULL, &d, NULL) != RAVEL_OK);
        w.bytes[i] ^= 0x10;
    }
    for (size_t n = 0; n < w.size; n++) CHECK(ravel__directory_decode(w.bytes, n, NULL, &d, NULL) != RAVEL_OK);
    free_world(&w);
}

/* Thousands of tensors with few cuts take little: the directory grows with tensors, not with tensors times senders. */
TEST(refit_directory_stores_cuts_once) {
    enum { SENDERS = 64, TENSORS = 2000 };
    static ravel_refit_tensor tensors[TENSORS];
    static char names[TENSORS][32];
    static ravel__sender senders[SENDERS];
    ravel__directory_builder b;
    ravel__differences list;
    unsigned char *bytes;
    size_t size;
    ravel__directory_begin(&b, NULL);
    ravel__differences_init(&list, NULL);
    for (int32_t s = 0; s < SENDERS; s++) {
        ravel__arena arena;
        ravel__holding h = {0};
        memcpy(senders[s].addresses, "a:1", 4);
        ravel__arena_init(&arena, NULL, 4096);
        for (int i = 0; i < TENSORS; i++) {
            (void)snprintf(names[i], sizeof names[i], "layers.%d.w", i);
            tensors[i] = (ravel_refit_tensor){.name = names[i], .dtype = RAVEL_BF16, .ndim = 2, .data = names};
            tensors[i].dims[0] = i % 3 ? 1000 : 500; /* two shapes, uneven cuts */
            tensors[i].dims[1] = 64;
            tensors[i].parts[0] = SENDERS;
            tensors[i].index[0] = s;
        }
        CHECK_EQ(ravel__holding_make(tensors, TENSORS, NULL, 0, 0, "x", &arena, &h, NULL), RAVEL_OK);
        unsigned char *manifest = NULL;
        CHECK_EQ(ravel__manifest_make(&h, -1, NULL, &manifest, &size, NULL), RAVEL_OK);
        CHECK_EQ(ravel__directory_add(&b, s, manifest, size, &list, NULL), RAVEL_OK);
        free(manifest);
        ravel__holding_free(&h, NULL);
        ravel__arena_free(&arena);
    }
    CHECK_EQ(b.node_count, 2 * (SENDERS + 1));
    CHECK_EQ(ravel__directory_encode(&b, senders, SENDERS, &bytes, &size, NULL), RAVEL_OK);
    CHECK(size < TENSORS * 32 + 3 * SENDERS * 64);
    free(bytes);
    ravel__directory_end(&b);
}

/* ---- messages ------------------------------------------------------------------------------------------- */

TEST(refit_pull_messages_come_back) {
    ravel__versions v = {.session = 77, .count = 2, .list = {{9, 1, 2}, {4, 3, 4}}}, v2;
    unsigned char failed[RAVEL__FAILED_BYTES];
    int64_t size = ravel__versions_bytes(v.count);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel__versions_decode(&v, size, &v2, &err), &err);
    CHECK(v2.session == 77 && v2.count == 2 && v2.list[0].version == 9 && v2.list[1].digest == 4);
    CHECK_EQ(ravel__versions_decode(&v, size - 1, &v2, NULL), RAVEL_E_DATA);
    v.list[1].version = 9; /* not falling */
    CHECK_EQ(ravel__versions_decode(&v, size, &v2, NULL), RAVEL_E_DATA);
    ravel__pull_report r = {.generator = 5, .held = {3, 4, 5}, .ranks = 2, .pause_seconds = .25, .commits = 6}, r2;
    CHECK_OK(ravel__pull_report_decode(&r, sizeof r, &r2, &err), &err);
    CHECK(r2.generator == 5 && r2.held.nonce == 4 && r2.pause_seconds == .25 && r2.commits == 6);
    memset(&r.pause_seconds, 0xff, 8); /* not a number */
    CHECK_EQ(ravel__pull_report_decode(&r, sizeof r, &r2, NULL), RAVEL_E_DATA);
    ravel__failed_encode(RAVEL_E_STATE, "gone", failed);
    CHECK_EQ(ravel__failed_decode(failed, sizeof failed, &err), RAVEL_E_STATE);
    CHECK_STR(err.message, "gone");
    ravel__failed_encode(RAVEL_OK, "fine?", failed); /* a failure is one, whatever it says */
    CHECK_EQ(ravel__failed_decode(failed, sizeof failed, NULL), RAVEL_E_DATA);
}

/* ---- the store ------------------------------------------------------------------------------------------ */

TEST(refit_store_keeps_the_newest_and_their_hashes) {
    float data[4000];
    ravel_refit_tensor t = float_tensor("w", data, 4000);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel__arena arena;
    ravel__holding h = {0};
    ravel__store store;
    ravel_refit_identity list[RAVEL__STORE_KEEP_MOST];
    char same[16];
    uint64_t digests[5];
    ravel__arena_init(&arena, NULL, 4096);
    CHECK_EQ(ravel__holding_make(&t, 1, NULL, 0, 0, "x", &arena, &h, NULL), RAVEL_OK);
    CHECK_EQ(ravel__store_init(&store, &h, NULL, 2, 4096, -1, 1, NULL, NULL), RAVEL_OK);
    CHECK_EQ(store.tiles.blocks, 4);
    for (int64_t v = 1; v <= 4; v++) {
        fill_floats(data, 4000, 1);
        data[2000] = (float)v; /* in block 1 */
        int32_t slot = ravel__store_claim(&store);
        CHECK_EQ(ravel__store_fill(&store, slot, &source, 3, &digests[v], NULL), RAVEL_OK);
        ravel__store_show(&store, slot, (ravel_refit_identity){v, 100 + (uint64_t)v, digests[v]});
    }
    CHECK(digests[1] != digests[2] && digests[3] != digests[4]);
    CHECK_EQ(ravel__store_list(&store, list), 2);
    CHECK(list[0].version == 4 && list[1].version == 3);
    ravel__kept *kept = ravel__store_use(&store, list[0]);
    CHECK(kept && !ravel__store_use(&store, (ravel_refit_identity){4, 5, digests[4]}));
    CHECK_EQ(((const float *)(const void *)kept->packed.bytes)[2000], 4);
    CHECK(
        ravel__store_compare(&store, kept, (ravel_refit_identity){1, 101, digests[1]}, same)); /* its bytes are gone */
    CHECK(same[0] && !same[1] && same[2] && same[3]);
    CHECK(!ravel__store_compare(&store, kept, (ravel_refit_identity){1, 102, digests[1]}, same));
    ravel__store_release(&store, kept);
    ravel__store_free(&store);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}
