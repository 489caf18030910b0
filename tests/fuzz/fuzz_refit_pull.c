/* What trainers and generators read of each other, on any bytes: the directory (also with the right checksum put in,
 * and then planned from), and the bodies of PULL, VERSIONS, HASHES, FAILED and REPORT. The first byte says which. */
#include "base/bytes.h"
#include "base/xxh3.h"
#include "refit/model/plan.h"
#include "refit/publish/store.h"
#include "refit/wire/pull_wire.h"

#include <stdlib.h>
#include <string.h>

/* The layout of a version: what is accepted lies inside the slot and its hashes. */
static void read_mapped(const unsigned char *bytes, size_t size) {
    ravel__mapped m;
    ravel__mapped_item item;
    if (ravel__mapped_open(bytes, (int64_t)size, &m, NULL) != RAVEL_OK) return;
    if (ravel__mapped_hashes(bytes, &m) + 8 * m.blocks != bytes + size || m.slot >= m.slots) abort();
    for (int64_t i = 0; i < m.items; i++) {
        if (ravel__mapped_item_at(bytes, &m, i, &item, NULL) != RAVEL_OK) continue;
        for (int64_t n = 1; n < (int64_t)1 << 40; n *= 3)
            if (ravel__mapped_holds(&m, &item, n) && (item.at + n * ravel_dtype_bytes(item.dtype) > m.bytes ||
                                                      item.first_block + (n - 1) / item.per_block >= m.blocks))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char place_holder[1];

/* Two tensors, one of them cut: what this rank has and wants. */
static const ravel_refit_tensor tensors[] = {
    {.name = "a", .dtype = RAVEL_F32, .ndim = 2, .dims = {8, 6}, .parts = {2}, .index = {1}, .data = place_holder},
    {.name = "b", .dtype = RAVEL_BF16, .ndim = 1, .dims = {5}, .data = place_holder},
};

static void plan_from(const ravel__directory *d, const ravel__holding *holding) {
    ravel__refit_plan_place place = {.machine = 1, .cast = RAVEL_REFIT_NARROW};
    ravel__differences list;
    ravel__refit_plan plan;
    ravel__differences_init(&list, NULL);
    if (ravel__refit_plan_make(d, holding, &place, NULL, &plan, &list, NULL) != RAVEL_OK) return;
    for (int32_t s = 0; s < plan.senders; s++)
        if (plan.first_want[s] > plan.first_want[s + 1]) abort();
    for (int64_t w = 0; w < plan.want_count; w++) {
        const ravel__piece *piece = plan.wants[w].piece;
        const ravel__box *of = &holding->items[plan.wants[w].item].view.box;
        ravel__box meet;
        if (piece->count < 1 || !ravel__box_meet(of, &piece->box, &meet) || !ravel__box_equal(&meet, &piece->box))
            abort();
    }
    ravel__refit_plan_free(&plan);
}

static void read_directory(unsigned char *bytes, size_t size, const ravel__holding *holding) {
    ravel__directory d;
    if (ravel__directory_decode(bytes, size, NULL, &d, NULL) == RAVEL_OK) {
        plan_from(&d, holding);
        ravel__directory_free(&d);
    }
    if (size < RAVEL__DIRECTORY_HEADER) return;
    ravel__xxh3 state;
    memcpy(bytes, "RVLD", 4);
    ravel__put16(bytes + 4, RAVEL__DIRECTORY_FORMAT);
    ravel__put64(bytes + 32, size);
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, 40);
    ravel__xxh3_add(&state, bytes + RAVEL__DIRECTORY_HEADER, size - RAVEL__DIRECTORY_HEADER);
    ravel__put64(bytes + 40, ravel__xxh3_end(&state));
    if (ravel__directory_decode(bytes, size, NULL, &d, NULL) != RAVEL_OK) return;
    plan_from(&d, holding);
    ravel__directory_free(&d);
}

static void read_ask(const unsigned char *bytes, size_t size, const ravel__holding *holding) {
    static const int32_t item_of[] = {1, -1, 0};
    ravel__store store;
    ravel__pull_ask ask;
    if (ravel__ask_open(bytes, (int64_t)size, &ask, NULL) != RAVEL_OK) return;
    if (ravel__store_init(&store, holding, NULL, 1, 4096, -1, 0, NULL, NULL) != RAVEL_OK) abort();
    ravel__asked *asked = calloc((size_t)ask.count + 1, sizeof *asked);
    if (asked && ravel__ask_read(bytes, (int64_t)size, &ask, &store, item_of, 3, asked, NULL) == RAVEL_OK)
        for (int64_t i = 0; i < ask.count; i++) {
            const ravel__box *of = &store.tiles.items[asked[i].item].view.box;
            for (int32_t d = 0; d < of->ndim; d++)
                if (asked[i].box.start[d] < of->start[d] ||
                    asked[i].box.start[d] + asked[i].box.extent[d] > of->start[d] + of->extent[d])
                    abort();
        }
    free(asked);
    ravel__store_free(&store);
}

static void read_small(int kind, const unsigned char *bytes, size_t size) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__versions v;
    ravel__pull_report r;
    if (kind == 2 && ravel__versions_decode(bytes, (int64_t)size, &v, &err) == RAVEL_OK &&
        (v.count < 0 || v.count > RAVEL__STORE_KEEP_MOST))
        abort();
    if (kind == 4 && ravel__failed_decode(bytes, (int64_t)size, &err) == RAVEL_OK) abort();
    if (kind == 5 && ravel__pull_report_decode(bytes, (int64_t)size, &r, &err) == RAVEL_OK && !(r.pause_seconds >= 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel__arena arena;
    ravel__holding holding = {0};
    if (bytes < 1) return 0;
    unsigned char *copy = malloc(bytes);
    if (!copy) return 0;
    memcpy(copy, data + 1, bytes - 1);
    ravel__arena_init(&arena, NULL, 4096);
    if (ravel__holding_make(tensors, 2, NULL, 0, 0, "sink", &arena, &holding, NULL) != RAVEL_OK) abort();
    int kind = data[0] % 7;
    if (kind == 0)
        read_directory(copy, bytes - 1, &holding);
    else if (kind == 1)
        read_ask(copy, bytes - 1, &holding);
    else if (kind == 6)
        read_mapped(copy, bytes - 1);
    else
        read_small(kind, copy, bytes - 1);
    ravel__holding_free(&holding, NULL);
    ravel__arena_free(&arena);
    free(copy);
    return 0;
}
