/* From the caller's tensors and rules to items.
 *
 *     tensor "layers.3.qkv" (dims, parts, index, strides)
 *        |  the first rule whose pattern fits; '*' is remembered
 *        v
 *     cut: which box of the fused tensor is here, its dims in memory, its strides
 *        |  for each position in the stack, for each part
 *        v
 *     item "layers.3.q": dims, box, and a view with the part's offset (and blocks, if parts interleave) */
#include "refit/model/carrier.h"

#include "base/assert.h"
#include "refit/model/names.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { STARS = 8, NAME_MOST = 1000 };

typedef struct star {
    const char *at;
    size_t bytes;
} star;

/* A tensor as it is in memory, before the rule splits it. */
typedef struct cut {
    ravel__box box;                   /* of the caller's tensor; along a joined dimension only a count is known */
    int64_t lies[RAVEL_REFIT_DIMS];   /* dims of the piece in memory */
    int64_t stride[RAVEL_REFIT_DIMS]; /* elements */
} cut;

typedef struct maker {
    const char *what;
    const ravel_refit_tensor *tensors;
    ravel__arena *arena;
    ravel__holding *holding;
    ravel_error *err;
} maker;

/* ---- patterns ------------------------------------------------------------------------------------------- */

static int match(const char *pattern, const char *name, star *stars, int32_t *count) {
    *count = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '*') {
            if (*pattern != *name++) return 0;
            continue;
        }
        size_t bytes = strcspn(name, ".");
        /* A star is followed by a dot, by the end, or by text that must come later in the same piece. */
        const char *rest = pattern + 1;
        size_t fixed = strcspn(rest, ".*");
        if (fixed > 0) {
            if (bytes <= fixed || strncmp(name + bytes - fixed, rest, fixed) != 0) return 0;
            bytes -= fixed;
        }
        if (bytes == 0 || *count == STARS) return 0;
        stars[(*count)++] = (star){name, bytes};
        name += bytes;
    }
    return *name == '\0';
}

/* The part's pattern with the stars and the stack position put in; 0 when it is too long or has more stars. */
static size_t fill_in(const char *pattern, size_t bytes, const star *stars, int32_t star_count, int64_t position,
                      char *out) {
    size_t used = 0;
    int32_t next = 0;
    for (size_t i = 0; i < bytes; i++) {
        int n = 0;
        if (used + 32 >= NAME_MOST) return 0;
        if (pattern[i] == '*') {
            if (next == star_count || used + stars[next].bytes + 32 >= NAME_MOST) return 0;
            n = (int)stars[next].bytes;
            memcpy(out + used, stars[next++].at, (size_t)n);
        } else if (pattern[i] == '#') {
            n = snprintf(out + used, 24, "%lld", (long long)position);
        } else {
            out[used] = pattern[i];
            n = 1;
        }
        used += (size_t)n;
    }
    RAVEL_ASSERT(used < NAME_MOST && next <= star_count);
    out[used] = '\0';
    return used;
}

/* ---- checks and cuts ------------------------------------------------------------------------------------ */

static ravel_status check_tensor(const maker *m, const ravel_refit_tensor *t, int64_t index) {
    int64_t bytes = ravel_dtype_bytes(t->dtype);
    if (!t->name || !t->name[0])
        return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor %lld has no name", m->what, (long long)index);
    if (strlen(t->name) >= NAME_MOST)
        return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor %lld: a name has at most %d bytes", m->what,
                               (long long)index, NAME_MOST - 1);
    if (bytes == 0)
        return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor \"%s\": there is no dtype %d", m->what, t->name,
                               t->dtype);
    if (t->ndim < 0 || t->ndim > RAVEL_REFIT_DIMS)
        return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor \"%s\": %d dimensions, at most %d are possible",
                               m->what, t->name, t->ndim, RAVEL_REFIT_DIMS);
    for (int32_t d = 0; d < t->ndim; d++) {
        if (t->dims[d] < 0)
            return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor \"%s\": dimension %d is %lld", m->what, t->name,
                                   d, (long long)t->dims[d]);
        int64_t factor = t->dims[d] > 0 ? t->dims[d] : 1;
        if (__builtin_mul_overflow(bytes, factor, &bytes))
            return ravel_error_set(m->err, RAVEL_E_OVERFLOW, "%s tensor \"%s\" has more than 2^63 bytes", m->what,
                                   t->name);
    }
    return RAVEL_OK;
}

/* parts and index of one dimension, checked. */
static ravel_status check_part(const maker *m, const ravel_refit_tensor *t, int32_t d, int32_t *parts, int32_t *index) {
    *parts = t->parts[d] == 0 ? 1 : t->parts[d];
    *index = t->index[d];
    if (*parts >= 1 && *index >= 0 && *index < *parts) return RAVEL_OK;
    return ravel_error_set(m->err, RAVEL_E_ARGUMENT,
                           "%s tensor \"%s\": dimension %d has index %d of %d parts; the index is 0 to parts - 1",
                           m->what, t->name, d, *index, *parts);
}

static ravel_status cut_explicit(const maker *m, const ravel_refit_tensor *t, cut *c) {
    for (int32_t d = 0; d < t->ndim; d++) {
        if (t->start[d] < 0 || t->extent[d] < 1 || t->extent[d] > t->dims[d] || t->start[d] > t->dims[d] - t->extent[d])
            return ravel_error_set(
                m->err, RAVEL_E_ARGUMENT,
                "%s tensor \"%s\": start %lld and extent %lld of dimension %d do not lie in 0 .. %lld", m->what,
                t->name, (long long)t->start[d], (long long)t->extent[d], d, (long long)t->dims[d]);
        c->box.start[d] = t->start[d];
        c->box.extent[d] = t->extent[d];
    }
    return RAVEL_OK;
}

static ravel_status cut_parts(const maker *m, const ravel_refit_tensor *t, cut *c) {
    for (int32_t d = 0; d < t->ndim; d++) {
        int32_t parts, index;
        ravel_status status = check_part(m, t, d, &parts, &index);
        if (status != RAVEL_OK) return status;
        c->box.start[d] = ravel__part_start(t->dims[d], parts, index);
        c->box.extent[d] = ravel__part_start(t->dims[d], parts, index + 1) - c->box.start[d];
        RAVEL_ASSERT(c->box.extent[d] >= 0 && c->box.start[d] >= 0 && c->box.start[d] + c->box.extent[d] <= t->dims[d]);
    }
    return RAVEL_OK;
}

/* Strides from the dims in memory, or the caller's. */
static ravel_status lay_out(const maker *m, const ravel_refit_tensor *t, int dense, cut *c) {
    int64_t step = 1, given = 0;
    for (int32_t d = 0; d < t->ndim; d++) given |= t->strides[d];
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        if (given && !dense && t->strides[d] < 0)
            return ravel_error_set(m->err, RAVEL_E_ARGUMENT,
                                   "%s tensor \"%s\": stride %lld of dimension %d is negative", m->what, t->name,
                                   (long long)t->strides[d], d);
        c->stride[d] = given && !dense ? t->strides[d] : step;
        step *= c->lies[d];
        RAVEL_ASSERT(c->lies[d] >= 0 && c->stride[d] >= 0);
    }
    return RAVEL_OK;
}

static int resize_items(ravel__holding *h, const ravel_allocator *allocator, int64_t room) {
    RAVEL_ASSERT(room >= 0 && (room == 0 || room >= h->count + h->ties));
    size_t each = sizeof *h->items;
    ravel__item *items = ravel__resize(allocator, h->items, (size_t)h->room * each, (size_t)room * each);
    if (!items && room > 0) return 0;
    h->items = items;
    h->room = room;
    return 1;
}

void ravel__holding_free(ravel__holding *holding, const ravel_allocator *allocator) {
    ravel__carrier_free(holding->carrier);
    holding->carrier = NULL;
    (void)resize_items(holding, allocator, 0);
    holding->count = 0;
}

const ravel_refit_tensor *ravel__holding_without_data(const ravel__holding *h, const ravel_refit_tensor *tensors) {
    for (int64_t i = 0; i < h->count + h->ties; i++) {
        const ravel__view *view = &h->items[i].view;
        if (!tensors[view->tensor].data && ravel__box_count(&view->box) > 0) return &tensors[view->tensor];
    }
    return NULL;
}

static ravel__item *new_item(maker *m) {
    ravel__holding *h = m->holding;
    if (h->count == h->room && !resize_items(h, m->arena->allocator, h->room + h->room / 2 + 16)) return NULL;
    RAVEL_ASSERT(h->count < h->room);
    return &h->items[h->count];
}

/* ---- a tensor without a rule ---------------------------------------------------------------------------- */

static ravel_status add_plain(maker *m, const ravel_refit_tensor *t, int64_t index, int dense) {
    cut c = {.box.ndim = t->ndim};
    ravel_status status = t->ndim > 0 && t->extent[0] > 0 ? cut_explicit(m, t, &c) : cut_parts(m, t, &c);
    if (status != RAVEL_OK) return status;
    memcpy(c.lies, c.box.extent, sizeof c.lies);
    status = lay_out(m, t, dense, &c);
    if (status != RAVEL_OK) return status;
    ravel__item *item = new_item(m);
    if (!item) return ravel__no_memory(m->err, 0, "the list of tensors");
    *item = (ravel__item){.name = t->name, .ndim = t->ndim, .dtype = t->dtype};
    memcpy(item->dims, t->dims, sizeof item->dims);
    item->view = (ravel__view){.box = c.box, .tensor = index, .dtype = t->dtype};
    memcpy(item->view.strides, c.stride, sizeof c.stride);
    m->holding->count++;
    return RAVEL_OK;
}

/* ---- a tensor with a rule ------------------------------------------------------------------------------- */

/* One part of a joined tensor: where it is in its wire tensor and in the memory here. */
typedef struct part {
    const char *pattern;
    size_t bytes;
    int64_t size;  /* of the whole wire tensor along the joined dimension */
    int64_t start; /* what is here of it */
    int64_t extent;
    int64_t offset;              /* rows from the piece's first row in memory */
    int64_t block, block_stride; /* rows; 0: not interleaved */
} part;

typedef struct joined {
    part parts[RAVEL_REFIT_PARTS];
    int32_t count;
    int64_t rows; /* of the piece in memory, along the joined dimension */
} joined;

static ravel_status split_names(const maker *m, const ravel_refit_rule *rule, joined *j) {
    j->count = 0;
    for (const char *at = rule->parts; at;) {
        size_t bytes = strcspn(at, ",");
        if (bytes == 0 || j->count == RAVEL_REFIT_PARTS)
            return ravel_error_set(
                m->err, RAVEL_E_ARGUMENT,
                "the rule for \"%s\" has parts \"%s\"; 1 to %d names, separated by commas, are allowed", rule->name,
                rule->parts, RAVEL_REFIT_PARTS);
        j->parts[j->count++] = (part){.pattern = at, .bytes = bytes};
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return RAVEL_OK;
}

static ravel_status rule_error(const maker *m, const ravel_refit_rule *rule, const ravel_refit_tensor *t,
                               const char *why) {
    return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "%s tensor \"%s\" does not fit the rule \"%s\" = \"%s\": %s",
                           m->what, t->name, rule->name, rule->parts, why);
}

static ravel_status join_concat(const maker *m, const ravel_refit_rule *rule, const ravel_refit_tensor *t, int64_t rows,
                                int32_t parts, int32_t index, joined *j) {
    int64_t total = 0, shares[RAVEL_REFIT_PARTS];
    for (int32_t p = 0; p < j->count; p++) total += rule->shares[p] > 0 ? rule->shares[p] : 0;
    for (int32_t p = 0; p < j->count; p++) {
        shares[p] = total > 0 ? rule->shares[p] : 1;
        if (shares[p] < 1) return rule_error(m, rule, t, "shares are all above 0, or all 0 for equal ones");
    }
    if (total == 0) total = j->count;
    if (rows % total != 0) return rule_error(m, rule, t, "the joined dimension is no multiple of the shares");
    for (int32_t p = 0; p < j->count; p++) {
        part *x = &j->parts[p];
        x->size = rows / total * shares[p];
        x->start = ravel__part_start(x->size, parts, index);
        x->extent = ravel__part_start(x->size, parts, index + 1) - x->start;
        x->offset = j->rows;
        RAVEL_ASSERT(x->extent >= 0 && x->start + x->extent <= x->size);
        j->rows += x->extent;
    }
    return RAVEL_OK;
}

static ravel_status check_heads(const maker *m, const ravel_refit_rule *rule, const ravel_refit_tensor *t, int64_t rows,
                                const joined *j) {
    if (j->count != 3) return rule_error(m, rule, t, "q, k and v are three parts");
    if (rule->heads < 1 || rule->kv_heads < 1 || rule->heads % rule->kv_heads != 0)
        return rule_error(m, rule, t, "heads is a multiple of kv_heads, and both are above 0");
    if (rows % (rule->heads + 2 * rule->kv_heads) != 0)
        return rule_error(m, rule, t, "the joined dimension is no multiple of heads + 2 * kv_heads");
    return RAVEL_OK;
}

static ravel_status join_qkv(const maker *m, const ravel_refit_rule *rule, const ravel_refit_tensor *t, int64_t rows,
                             int32_t parts, int32_t index, joined *j) {
    ravel_status status = check_heads(m, rule, t, rows, j);
    if (status != RAVEL_OK) return status;
    int64_t each = rows / (rule->heads + 2 * rule->kv_heads);
    if (rule->heads % parts != 0)
        return rule_error(m, rule, t, "the heads cannot be cut into this number of equal parts");
    for (int32_t p = 0; p < 3; p++) {
        int64_t heads = p == 0 ? rule->heads : rule->kv_heads, n = parts, i = index;
        if (heads % n != 0) {
            if (n % heads != 0)
                return rule_error(m, rule, t, "kv_heads is neither a multiple nor a divisor of the number of parts");
            i /= n / heads;
            n = heads;
        }
        part *x = &j->parts[p];
        x->size = heads * each;
        x->extent = heads / n * each;
        x->start = i * x->extent;
        RAVEL_ASSERT(x->extent > 0 || x->size == 0);
        x->offset = j->rows;
        j->rows += x->extent;
    }
    return RAVEL_OK;
}

static ravel_status join_grouped(const maker *m, const ravel_refit_rule *rule, const ravel_refit_tensor *t,
                                 int64_t rows, int32_t parts, int32_t index, joined *j) {
    ravel_status status = check_heads(m, rule, t, rows, j);
    if (status != RAVEL_OK) return status;
    if (rule->kv_heads % parts != 0)
        return rule_error(m, rule, t, "kv_heads cannot be cut into this number of equal parts");
    int64_t each = rows / (rule->heads + 2 * rule->kv_heads), ratio = rule->heads / rule->kv_heads;
    int64_t groups = rule->kv_heads / parts;
    for (int32_t p = 0; p < 3; p++) {
        part *x = &j->parts[p];
        x->block = (p == 0 ? ratio : 1) * each;
        x->block_stride = (ratio + 2) * each;
        x->size = rule->kv_heads * x->block;
        x->extent = groups * x->block;
        x->start = index * x->extent;
        RAVEL_ASSERT(x->start + x->extent <= x->size);
        x->offset = (p == 0 ? 0 : ratio + p - 1) * each;
    }
    j->rows = groups * (ratio + 2) * each;
    return RAVEL_OK;
}

typedef ravel_status (*join_fn)(const maker *, const ravel_refit_rule *, const ravel_refit_tensor *, int64_t, int32_t,
                                int32_t, joined *);
static const join_fn joins[] = {join_concat, join_qkv, join_grouped};

/* What the part is called, in the arena. */
static ravel_status name_part(const maker *m, const ravel_refit_tensor *t, const ravel_refit_rule *rule, const part *x,
                              int64_t number, const star *stars, int32_t star_count, const char **name) {
    char text[NAME_MOST];
    size_t bytes = fill_in(x->pattern, x->bytes, stars, star_count, number, text);
    if (bytes == 0) return rule_error(m, rule, t, "a part has more stars than the name, or is too long");
    char *kept = ravel__arena_push(m->arena, bytes + 1, 1);
    if (!kept) return ravel__no_memory(m->err, bytes + 1, "a name");
    *name = memcpy(kept, text, bytes + 1);
    return RAVEL_OK;
}

static ravel_status add_part(maker *m, const ravel_refit_tensor *t, int64_t index, const ravel_refit_rule *rule,
                             const cut *c, const part *x, int64_t position, const star *stars, int32_t star_count) {
    int32_t front = rule->stack > 0, at = rule->dim + front;
    const char *name = NULL;
    ravel_status status =
        name_part(m, t, rule, x, front && rule->map ? rule->map[position] : position, stars, star_count, &name);
    if (status != RAVEL_OK) return status;
    ravel__item *item = new_item(m);
    if (!item) return ravel__no_memory(m->err, sizeof *item, "a tensor");
    *item = (ravel__item){.name = name, .ndim = t->ndim - front, .dtype = t->dtype};
    item->view = (ravel__view){.tensor = index, .dtype = t->dtype, .box.ndim = item->ndim};
    for (int32_t d = front; d < t->ndim; d++) {
        int32_t to = d - front;
        item->dims[to] = d == at ? x->size : t->dims[d];
        item->view.box.start[to] = d == at ? x->start : c->box.start[d];
        item->view.box.extent[to] = d == at ? x->extent : c->box.extent[d];
        item->view.strides[to] = c->stride[d];
    }
    item->view.offset = x->offset * c->stride[at] + (front ? (position - c->box.start[0]) * c->stride[0] : 0);
    item->view.block = x->block;
    item->view.block_stride = x->block_stride * c->stride[at];
    item->view.block_dim = rule->dim;
    RAVEL_ASSERT(x->extent >= 0 && x->start >= 0 && x->start + x->extent <= x->size && item->view.offset >= 0);
    m->holding->count++;
    return RAVEL_OK;
}

/* A new name for the same tensor: the joined dimension is the tensor's own, cut as the caller likes. */
static ravel_status add_renamed(maker *m, const ravel_refit_tensor *t, int64_t index, const ravel_refit_rule *rule,
                                const joined *j, int dense, const star *stars, int32_t star_count) {
    const char *name = NULL;
    ravel_status status = name_part(m, t, rule, &j->parts[0], 0, stars, star_count, &name);
    if (status == RAVEL_OK) status = add_plain(m, t, index, dense);
    if (status == RAVEL_OK) m->holding->items[m->holding->count - 1].name = name;
    return status;
}

static ravel_status add_joined(maker *m, const ravel_refit_tensor *t, int64_t index, const ravel_refit_rule *rule,
                               int dense, const star *stars, int32_t star_count) {
    joined j = {.count = 0};
    int32_t front = rule->stack > 0, at = rule->dim + front, parts, position;
    ravel_status status = split_names(m, rule, &j);
    if (status != RAVEL_OK) return status;
    if (rule->join < 0 || rule->join > RAVEL_REFIT_QKV_GROUPED) return rule_error(m, rule, t, "no such way to join");
    RAVEL_ASSERT((size_t)rule->join < sizeof joins / sizeof *joins && j.count >= 1);
    if (j.count == 1 && !front && rule->join == RAVEL_REFIT_CONCAT)
        return add_renamed(m, t, index, rule, &j, dense, stars, star_count);
    if (rule->dim < 0 || at >= t->ndim) return rule_error(m, rule, t, "it has no such dimension to join along");
    if (t->extent[0] > 0) return rule_error(m, rule, t, "a joined tensor is cut by parts and index");
    if (front && t->dims[0] != rule->stack) return rule_error(m, rule, t, "its first dimension is not the stack");
    cut c = {.box.ndim = t->ndim};
    status = cut_parts(m, t, &c);
    if (status == RAVEL_OK) status = check_part(m, t, at, &parts, &position);
    if (status == RAVEL_OK) status = joins[rule->join](m, rule, t, t->dims[at], parts, position, &j);
    if (status != RAVEL_OK) return status;
    memcpy(c.lies, c.box.extent, sizeof c.lies);
    c.lies[at] = j.rows;
    status = lay_out(m, t, dense, &c);
    int64_t from = front ? c.box.start[0] : 0, to = front ? from + c.box.extent[0] : 1;
    for (int64_t e = from; e < to && status == RAVEL_OK; e++)
        for (int32_t p = 0; p < j.count && status == RAVEL_OK && !(front && rule->map && rule->map[e] < 0); p++)
            status = add_part(m, t, index, rule, &c, &j.parts[p], e, stars, star_count);
    return status;
}

/* ---- all tensors ---------------------------------------------------------------------------------------- */

static ravel_status add_tensor(maker *m, const ravel_refit_tensor *t, int64_t index, const ravel_refit_rule *rules,
                               int64_t rule_count, int dense) {
    star stars[STARS];
    int32_t star_count;
    ravel_status status = check_tensor(m, t, index);
    if (status != RAVEL_OK) return status;
    for (int64_t r = 0; r < rule_count; r++)
        if (match(rules[r].name, t->name, stars, &star_count))
            return add_joined(m, t, index, &rules[r], dense, stars, star_count);
    return add_plain(m, t, index, dense);
}

/* The same piece of one tensor under two of the caller's names that a rule maps to one. The same name twice is an
error. */
static int are_tied(const maker *m, const ravel__item *a, const ravel__item *b) {
    size_t dims = (size_t)a->ndim * sizeof a->dims[0];
    const char *name_a = m->tensors[a->view.tensor].name, *name_b = m->tensors[b->view.tensor].name;
    return strcmp(name_a, name_b) != 0 && a->ndim == b->ndim && a->dtype == b->dtype &&
           memcmp(a->dims, b->dims, dims) == 0 && memcmp(a->view.box.start, b->view.box.start, dims) == 0 &&
           memcmp(a->view.box.extent, b->view.box.extent, dims) == 0;
}

/* A tied item, to be moved after the others. */
typedef struct tie {
    struct tie *next;
    ravel__item item;
    int64_t to; /* the first of its name */
} tie;

static ravel_status set_aside(const maker *m, const ravel__item *item, int64_t to, tie **list) {
    RAVEL_ASSERT(to >= 0 && to < m->holding->count);
    if (!are_tied(m, item, &m->holding->items[to]))
        return ravel_error_set(m->err, RAVEL_E_ARGUMENT, "the %s has \"%s\" twice", m->what, item->name);
    tie *t = ravel__arena_push(m->arena, 1, sizeof *t);
    if (!t) return ravel__no_memory(m->err, sizeof *t, "tied weights");
    *t = (tie){*list, *item, to};
    *list = t;
    return RAVEL_OK;
}

/* Moves items whose name came before to the end, and links them. */
static ravel_status find_ties(const maker *m) {
    ravel__holding *h = m->holding;
    ravel__names names;
    tie *list = NULL;
    ravel_status status = RAVEL_OK;
    int64_t kept = 0;
    ravel__names_init(&names, m->arena->allocator);
    for (int64_t i = 0; i < h->count && status == RAVEL_OK; i++) {
        int64_t to = ravel__names_find(&names, h->items[i].name);
        if (to >= 0)
            status = set_aside(m, &h->items[i], to, &list);
        else if (!ravel__names_add(&names, h->items[i].name, kept))
            status = ravel__no_memory(m->err, 0, "the table of names");
        else
            h->items[kept++] = h->items[i];
    }
    ravel__names_free(&names);
    if (status != RAVEL_OK) return status;
    RAVEL_ASSERT(kept <= h->count);
    h->count = kept;
    for (; list; list = list->next, h->ties++) {
        h->items[kept + h->ties] = list->item;
        RAVEL_ASSERT(kept + h->ties < h->room && list->to < kept);
        h->items[kept + h->ties].tied = h->items[list->to].tied;
        h->items[list->to].tied = kept + h->ties;
    }
    return RAVEL_OK;
}

static ravel_status check_rules(const maker *m, const ravel_refit_rule *rules, int64_t count) {
    for (int64_t r = 0; r < count; r++)
        if (!rules[r].name || !rules[r].parts || !rules[r].name[0] || rules[r].stack < 0)
            return ravel_error_set(m->err, RAVEL_E_ARGUMENT,
                                   "%s rule %lld needs a name, parts and a stack of 0 or more", m->what, (long long)r);
    return RAVEL_OK;
}

/* Items lie inside their tensors and are of tensors that there are; ties lead from an item to those behind all items,
 * and end. */
static bool holding_ok(const ravel__holding *h, int64_t tensors) {
    if (h->count < 0 || h->ties < 0 || h->room < h->count + h->ties) return false;
    for (int64_t i = 0; i < h->count + h->ties; i++) {
        const ravel__item *item = &h->items[i];
        const ravel__box *box = &item->view.box;
        if (item->view.tensor < 0 || item->view.tensor >= tensors || box->ndim != item->ndim) return false;
        if (item->tied != 0 && (item->tied < h->count || item->tied >= h->count + h->ties)) return false;
        for (int32_t d = 0; d < item->ndim; d++)
            if (box->start[d] < 0 || box->extent[d] < 0 || box->start[d] + box->extent[d] > item->dims[d]) return false;
    }
    return true;
}

ravel_status ravel__holding_make(const ravel_refit_tensor *tensors, int64_t count, const ravel_refit_rule *rules,
                                 int64_t rule_count, int dense, const char *what, ravel__arena *arena,
                                 ravel__holding *holding, ravel_error *err) {
    ravel__holding made = {0};
    maker m = {.what = what, .tensors = tensors, .arena = arena, .holding = &made, .err = err};
    if (count < 0 || rule_count < 0 || (count > 0 && !tensors) || (rule_count > 0 && !rules))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the %s has %lld tensors and %lld rules, and no list of them",
                               what, (long long)count, (long long)rule_count);
    ravel_status status = check_rules(&m, rules, rule_count);
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++)
        status = add_tensor(&m, &tensors[i], i, rules, rule_count, dense);
    if (status == RAVEL_OK) status = find_ties(&m);
    if (status == RAVEL_OK) status = ravel__carrier_open(tensors, count, what, &made, err);
    if (status == RAVEL_OK && dense && made.carrier)
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                                 "the sink has load, which gets pieces in host memory; its tensors' place must be 0");
    if (status == RAVEL_OK && made.ties > 0 && made.carrier)
        status = ravel_error_set(
            err, RAVEL_E_UNSUPPORTED,
            "the %s has \"%s\" twice; tied weights on a device are listed once, and copied by the caller", what,
            made.items[made.count].name);
    if (status == RAVEL_OK) {
        (void)resize_items(&made, arena->allocator, made.count + made.ties); /* free the unused end */
        RAVEL_ASSERT(holding_ok(&made, count));
        *holding = made;
    } else {
        ravel__holding_free(&made, arena->allocator);
    }
    return status;
}
