/* Packing and context-parallel gathers on the device against its own copies of the same number of bytes. */
#include "bench/gpu/gpu.h"

#include <ravel/batch.h>

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 65536, SAMPLES = 64, PLACES = 24, MOST_FIELDS = 8 };

/* 64 samples, 65,536 tokens: lengths 64 .. 1,984 in steps, alternating. */
typedef struct store {
    int64_t offsets[SAMPLES + 1];
    int32_t order[SAMPLES];
    ravel_field fields[MOST_FIELDS];
    ravel_ragged ragged;
    ravel_bin bin;
} store;

static void make_store(store *s, gpu *g, const ravel_field *fields, int count) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t half = i / 2 * 60;
        s->offsets[i + 1] = s->offsets[i] + (i % 2 ? 1024 - half / 2 : 1024 + half / 2);
        s->order[i] = (i * 37 + 5) % SAMPLES;
    }
    s->ragged = (ravel_ragged){.size = sizeof s->ragged, .count = SAMPLES, .offsets = s->offsets, .field_count = count};
    s->bin = (ravel_bin){s->order, SAMPLES};
    for (int f = 0; f < count; f++) {
        s->fields[f] = fields[f];
        s->fields[f].data = gpu_room(g, (size_t)ravel_field_bytes(&s->ragged, &fields[f]));
        s->fields[f].place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
    }
    s->ragged.fields = s->fields;
}

typedef struct packing {
    gpu *g;
    store s;
    ravel_thd_options options;
    ravel_thd thds[PLACES];
    void *tables[PLACES][MOST_FIELDS], *blocks[PLACES];
    int places;
} packing;

static void pack_once(void *user, int i) {
    packing *p = user;
    (void)ravel_thd_pack(&p->s.ragged, &p->s.bin, &p->options, &p->thds[i % p->places], &p->g->err);
}

/* Bytes that a pack reads and writes. */
static double moved_bytes(const packing *p) {
    double bytes = 0;
    for (int64_t f = 0; f < p->s.ragged.field_count; f++) {
        bytes += (double)ravel_thd_field_bytes(&p->thds[0], &p->s.fields[f]);
        bytes += (double)ravel_field_bytes(&p->s.ragged, &p->s.fields[f]);
    }
    return bytes + TOKENS * (4.0 + 4 + 1 + 4);
}

static void bench_pack(const char *name, const char *time_name, const ravel_field *fields, int count, int places,
                       const char *what) {
    gpu g;
    if (!gpu_open(&g)) return;
    packing *p = calloc(1, sizeof *p);
    if (!p) return;
    p->g = &g;
    p->places = places;
    make_store(&p->s, &g, fields, count);
    ravel_thd_options_default(&p->options);
    for (int i = 0; i < places; i++) {
        p->thds[i] = (ravel_thd){.size = sizeof p->thds[i], .fields = p->tables[i]};
        p->thds[i].place = (ravel_place){RAVEL_DEVICE, 0, g.stream};
        (void)ravel_thd_measure(&p->s.ragged, &p->s.bin, &p->options, &p->thds[i], &g.err);
        p->blocks[i] = gpu_room(&g, ravel_thd_bytes(&p->s.ragged, &p->options, &p->thds[i]));
        ravel_thd_place(&p->s.ragged, &p->options, p->blocks[i], &p->thds[i]);
    }
    double bytes = moved_bytes(p), seconds = gpu_seconds(&g, 100, pack_once, p);
    double copy = gpu_copy_seconds(&g, (size_t)(bytes / 2));
    bench_report(name, copy / seconds, "x", HIGHER, "%s; %.1f MB read and written, a copy of as many takes %.1f us",
                 what, bytes / 1e6, copy * 1e6);
    bench_report(time_name, seconds * 1e6, "us", LOWER, "the same, time on the device");
    gpu_close(&g);
    free(p);
}

BENCH(gpu_pack) {
    static const ravel_field usual[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
                                        {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .pad = -100},
                                        {.name = "weights", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32},
                                        {.name = "old", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32},
                                        {.name = "reference", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32},
                                        {.name = "advantage", .kind = RAVEL_FIELD_SPREAD, .dtype = RAVEL_F32}};
    bench_pack("gpu.pack_vs_copy", "gpu.pack_us", usual, 6, PLACES,
               "65,536 tokens of 64 samples, 6 fields and 4 derived arrays");
    static const ravel_field wide[] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "hidden", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_BF16, .width = 2048}};
    bench_pack("gpu.pack_wide_vs_copy", "gpu.pack_wide_us", wide, 2, 2,
               "65,536 tokens of 64 samples with 2,048 bf16 each");
}

typedef struct gathering {
    gpu *g;
    ravel_cp cp;
    int32_t slots[SAMPLES + 1];
    char *whole, *shard;
    size_t each;
    int places;
} gathering;

static void gather_once(void *user, int i) {
    gathering *j = user;
    const ravel_place place = {RAVEL_DEVICE, 0, j->g->stream};
    size_t bytes = (size_t)TOKENS * j->each;
    (void)ravel_cp_gather(&j->cp, i % j->cp.ranks, j->slots, SAMPLES, j->whole + (size_t)(i % j->places) * bytes,
                          j->each, j->shard + (size_t)(i % j->places) * bytes / 2, &place, &j->g->err);
}

static void bench_cp(const char *name, size_t each, int places, const char *what) {
    gpu g;
    if (!gpu_open(&g)) return;
    gathering j = {.g = &g, .cp = {2, RAVEL_CP_ZIGZAG}, .each = each, .places = places};
    for (int i = 0; i <= SAMPLES; i++) j.slots[i] = i * (TOKENS / SAMPLES);
    j.whole = gpu_room(&g, (size_t)TOKENS * each * (size_t)places);
    j.shard = gpu_room(&g, (size_t)TOKENS * each * (size_t)places / 2);
    double seconds = gpu_seconds(&g, 100, gather_once, &j), copy = gpu_copy_seconds(&g, (size_t)TOKENS / 2 * each);
    bench_report(name, copy / seconds, "x", HIGHER, "%s, zig-zag over cp 2: %.2f us, a copy of as many %.2f us", what,
                 seconds * 1e6, copy * 1e6);
    gpu_close(&g);
}

BENCH(gpu_cp) {
    bench_cp("gpu.cp_vs_copy", 4096, 2, "65,536 positions of 4 KiB");
    bench_cp("gpu.cp_tokens_vs_copy", 4, 64, "65,536 positions of 4 bytes");
}
