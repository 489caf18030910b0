/* tokenizer.model, a protobuf message of sentencepiece, to a tokenizer.
 *
 *     message  1 piece, repeated   1 text, 2 score (float), 3 kind
 *              2 training          3 model, 35 byte fallback, 40 .. 43 ids of unk, bos, eos, pad
 *              3 normalizer        2 character map, 3 space before the text, 4 single spaces, 5 spaces as U+2581
 *
 * The ids are those of the sentencepiece package. What differs on purpose: control and unknown pieces ("<s>") in a text
 * are special tokens, as transformers has them, and a text begins with bos if the model has one and
 * tokenizer_config.json does not say otherwise. */
#include "text/normal.h"
#include "text/tokenizer.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE = 2 };

/* ---- protobuf ---------------------------------------------------------------------------------------------- */

typedef struct message {
    const unsigned char *at, *end;
} message;

typedef struct field {
    int number;
    uint64_t value; /* of a number */
    message inside; /* of bytes, a text, a message; of 4 bytes */
} field;

static int read_varint(message *m, uint64_t *value) {
    *value = 0;
    for (int shift = 0; m->at < m->end && shift < 64; shift += 7) {
        unsigned char byte = *m->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* 1: a field; 0: the end; -1: not protobuf. */
static int next_field(message *m, field *f) {
    uint64_t key, bytes = 0;
    if (m->at == m->end) return 0;
    if (!read_varint(m, &key) || key >> 3 == 0 || key >> 3 > 1 << 20) return -1;
    *f = (field){(int)(key >> 3), 0, {m->at, m->at}};
    switch (key & 7) {
    case 0: return read_varint(m, &f->value) ? 1 : -1;
    case 1: bytes = 8; break;
    case 5: bytes = 4; break;
    case 2:
        if (!read_varint(m, &bytes)) return -1;
        break;
    default: return -1;
    }
    if (bytes > (uint64_t)(m->end - m->at)) return -1;
    f->inside = (message){m->at, m->at + bytes};
    m->at += bytes;
    return 1;
}

/* ---- the message ------------------------------------------------------------------------------------------- */

typedef struct piece {
    const char *text;
    size_t bytes;
    float score;
    int kind;
} piece;

typedef struct model {
    ravel_tokenizer *t;
    message all;
    ravel_error *err;
    int32_t count;
    size_t text_bytes;
    int kind, byte_fallback, suffix;
    int64_t unknown, bos, eos, pad;
    message map;
    int dummy, tidy, escape;
} model;

static ravel_status broken(const model *m) {
    return ravel_error_set(m->err, RAVEL_E_DATA, "this is not a sentencepiece model: its fields cannot be read");
}

static int read_piece(message m, piece *p) {
    field f;
    int more;
    *p = (piece){"", 0, 0, NORMAL};
    while ((more = next_field(&m, &f)) == 1) {
        if (f.number == 1) p->text = (const char *)f.inside.at, p->bytes = (size_t)(f.inside.end - f.inside.at);
        if (f.number == 2 && f.inside.end - f.inside.at == 4) memcpy(&p->score, f.inside.at, 4);
        if (f.number == 3) p->kind = (int)f.value;
    }
    int seen;
    return more == 0 && p->score - p->score == 0 && ravel__utf8_scan(p->text, p->bytes, &seen) == p->bytes;
}

static int read_training(message m, model *out) {
    field f;
    int more;
    while ((more = next_field(&m, &f)) == 1) {
        switch (f.number) {
        case 3: out->kind = (int)f.value; break;
        case 24: out->suffix = f.value != 0; break;
        case 35: out->byte_fallback = f.value != 0; break;
        case 40: out->unknown = (int32_t)f.value; break;
        case 41: out->bos = (int32_t)f.value; break;
        case 42: out->eos = (int32_t)f.value; break;
        case 43: out->pad = (int32_t)f.value; break;
        default: break;
        }
    }
    return more == 0;
}

static int read_normalizer(message m, model *out) {
    field f;
    int more;
    while ((more = next_field(&m, &f)) == 1) {
        if (f.number == 2) out->map = f.inside;
        if (f.number == 3) out->dummy = f.value != 0;
        if (f.number == 4) out->tidy = f.value != 0;
        if (f.number == 5) out->escape = f.value != 0;
    }
    return more == 0;
}

static ravel_status read_parts(model *m) {
    message all = m->all;
    field f;
    piece p;
    int more, good = 1;
    while (good && (more = next_field(&all, &f)) == 1) {
        if (f.number == 1) {
            good = read_piece(f.inside, &p) && m->count < RAVEL__ID_LIMIT - 1;
            m->count++;
            m->text_bytes += p.bytes;
        }
        if (f.number == 2) good = read_training(f.inside, m);
        if (f.number == 3) good = read_normalizer(f.inside, m);
    }
    if (!good || more < 0 || m->count == 0) return broken(m);
    if ((m->kind != UNIGRAM && m->kind != BPE) || m->suffix || !m->escape)
        return ravel_error_set(m->err, RAVEL_E_UNSUPPORTED,
                               "this model of sentencepiece is not supported: %s; supported: Unigram and BPE with "
                               "U+2581 for spaces, before words",
                               m->suffix    ? "spaces come after words"
                               : !m->escape ? "spaces stay as they are"
                                            : "it cuts into words or characters");
    if (m->unknown < 0 || m->unknown >= m->count)
        return ravel_error_set(m->err, RAVEL_E_DATA, "the model of sentencepiece has no unknown piece");
    return RAVEL_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------ */

static ravel_status add_symbol(const model *m, const piece *p, int32_t id) {
    ravel_tokenizer *t = m->t;
    int special = p->kind == CONTROL || p->kind == UNKNOWN;
    t->vocab.tokens[id].special = (uint32_t)special;
    if ((!special && p->kind != USER_DEFINED) || p->bytes == 0) return RAVEL_OK;
    return ravel__added_add(&t->added[!special], p->text, p->bytes, id, 0, m->err);
}

typedef ravel_status (*take_piece)(const model *m, const piece *p, int32_t id, void *user);

static ravel_status each_piece(const model *m, take_piece take, void *user) {
    message all = m->all;
    field f;
    piece p;
    int32_t id = 0;
    ravel_status status = RAVEL_OK;
    while (!status && next_field(&all, &f) == 1)
        if (f.number == 1) (void)read_piece(f.inside, &p), status = take(m, &p, id++, user);
    return status;
}

static ravel_status add_piece(const model *m, const piece *p, int32_t id, void *user) {
    (void)user;
    if (p->kind == UNUSED && m->kind == BPE)
        return ravel_error_set(m->err, RAVEL_E_UNSUPPORTED,
                               "the piece \"%.*s\" is marked unused, which is not supported",
                               (int)(p->bytes < 60 ? p->bytes : 60), p->text);
    ravel_status status = ravel__vocab_add(&m->t->vocab, p->text, p->bytes, id, m->err);
    return status ? status : add_symbol(m, p, id);
}

/* ---- the two models ---------------------------------------------------------------------------------------- */

static ravel_status add_scored(const model *m, const piece *p, int32_t id, void *user) {
    float *least = user;
    ravel__unigram *u = &m->t->unigram;
    u->scores[id] = p->score;
    if (p->kind != NORMAL) return RAVEL_OK;
    if (p->score < *least) *least = p->score;
    return ravel__unigram_add(u, p->text, p->bytes, id, m->t->allocator, m->err);
}

static ravel_status make_unigram(const model *m) {
    ravel__unigram *u = &m->t->unigram;
    float least = 3.4e38F;
    u->scores = ravel__arena_push(&m->t->arena, (size_t)m->count, sizeof *u->scores);
    if (!u->scores) return ravel__no_memory(m->err, (size_t)m->count * sizeof *u->scores, "scores");
    ravel_status status = each_piece(m, add_scored, &least);
    if (!status && !u->edges)
        return ravel_error_set(m->err, RAVEL_E_DATA, "the model of sentencepiece has no piece with a text");
    u->single = 1;
    u->unknown_score = (double)(least - 10);
    u->unknown = (int32_t)m->unknown;
    memcpy(u->fallback, m->t->bpe.fallback, sizeof u->fallback);
    return status;
}

typedef struct rated {
    float score;
    int32_t id;
} rated;

static int better(const void *a, const void *b) {
    const rated *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->id > y->id) - (x->id < y->id);
}

typedef struct ratings {
    rated *each;
    int32_t count;
} ratings;

static ravel_status rate(const model *m, const piece *p, int32_t id, void *user) {
    ratings *r = user;
    (void)m;
    if (p->kind == NORMAL) r->each[r->count++] = (rated){p->score, id};
    return RAVEL_OK;
}

/* Of two neighbours the pair whose piece has the larger score is merged first; equal scores are one rank. */
static ravel_status make_bpe(const model *m) {
    ravel_tokenizer *t = m->t;
    ravel__buffer rated_memory = {0}, rank_memory = {0};
    ravel_status status = ravel__buffer_reserve(&rated_memory, t->allocator, m->count, sizeof(rated), "scores", m->err);
    if (!status)
        status = ravel__buffer_reserve(&rank_memory, t->allocator, m->count, sizeof(uint32_t), "ranks", m->err);
    ratings r = {rated_memory.at, 0};
    uint32_t *ranks = rank_memory.at;
    RAVEL_ASSERT(status || (r.each && ranks));
    if (!status) status = each_piece(m, rate, &r);
    if (!status) {
        memset(ranks, 0xff, (size_t)m->count * sizeof *ranks);
        qsort(r.each, (size_t)r.count, sizeof *r.each, better);
        for (int32_t i = 0; i < r.count; i++)
            ranks[r.each[i].id] = i && r.each[i].score == r.each[i - 1].score ? ranks[r.each[i - 1].id] : (uint32_t)i;
        status = ravel__bpe_derive(&t->bpe, &t->vocab, ranks, &t->arena, t->allocator, m->err);
    }
    t->bpe.fuse_unknown = 1;
    ravel__buffer_free(&rated_memory, t->allocator);
    ravel__buffer_free(&rank_memory, t->allocator);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------- */

/* The file's bytes are not kept, its character map is. */
static ravel_status make_normalizer(const model *m) {
    ravel_tokenizer *t = m->t;
    size_t bytes = (size_t)(m->map.end - m->map.at);
    ravel__normal *step = &t->normals[t->normal_count++];
    char *copy = ravel__arena_push(&t->arena, bytes + 1, 1);
    if (!copy) return ravel__no_memory(m->err, bytes, "a character map");
    if (bytes) memcpy(copy, m->map.at, bytes);
    step->apply = ravel__normal_sentencepiece;
    step->dummy = m->dummy;
    step->tidy = m->tidy;
    step->symbols = &t->added[1];
    return ravel__charsmap_open(copy, bytes, &step->map, m->err);
}

static ravel_status load(model *m) {
    ravel_tokenizer *t = m->t;
    ravel_status status = read_parts(m);
    if (status) return status;
    t->vocab.spaced = 1;
    status = ravel__vocab_init(&t->vocab, &t->arena, m->count, m->text_bytes, m->count, m->err);
    for (int i = 0; i < 2; i++) ravel__added_init(&t->added[i], &t->arena);
    if (!status) status = each_piece(m, add_piece, NULL);
    if (status) return status;
    t->bpe.unknown = (int32_t)m->unknown;
    ravel__tokenizer_find_bytes(t, m->byte_fallback);
    status = m->kind == BPE ? make_bpe(m) : make_unigram(m);
    if (!status) status = make_normalizer(m);
    if (status) return status;
    int64_t named[] = {m->bos, m->eos, m->pad};
    int32_t *ids[] = {&t->bos, &t->eos, &t->pad};
    for (int i = 0; i < 3; i++)
        if (named[i] >= 0 && named[i] < m->count) *ids[i] = (int32_t)named[i];
    t->fallback = m->byte_fallback;
    t->strip = m->dummy ? RAVEL__STRIP_SPACE : RAVEL__STRIP_NOTHING;
    /* Sums of single precision depend on where they begin, so Unigram's texts are not cut. */
    if (m->kind == BPE && ravel__spaces_may_split(t)) t->split_spaces = 2;
    return ravel__tokenizer_surround(t, t->bos, RAVEL__NO_ID, m->err);
}

ravel_status ravel__sentencepiece_load(ravel_tokenizer *t, const char *bytes, size_t count, ravel_error *err) {
    const unsigned char *u = (const unsigned char *)bytes;
    model m = {.t = t, .all = {u, u + count}, .err = err, .kind = UNIGRAM, .bos = 1, .eos = 2, .pad = -1};
    m.dummy = m.tidy = m.escape = 1;
    m.map = (message){u, u};
    return load(&m);
}
