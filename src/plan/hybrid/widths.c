/* Widths, prices and slot multiples from the options. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* ---- lists of numbers ---------------------------------------------------------------------------------------- */

/* Takes one number of at most `most` that ends before one of `ends`; 0 if there is none. */
static int take_number(const char **text, const char *ends, int64_t most, int64_t *value) {
    const char *at = *text;
    *value = 0;
    while (*at >= '0' && *at <= '9' && *value <= most) *value = *value * 10 + (*at++ - '0');
    if (at == *text || *value > most || (*at && !strchr(ends, *at))) return 0;
    *text = at;
    return 1;
}

static ravel_status bad_widths(const char *text, int32_t pool, ravel_error *err) {
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "cp-widths \"%.60s\" must be rising numbers up to cp-pool %d, each a divisor of the next, at "
        "most %d of them, such as 1,2,4,8",
        text, pool, RAVEL__MOST_WIDTHS);
}

static ravel_status read_widths(const char *text, ravel__widths *w, ravel_error *err) {
    const char *rest = text;
    for (;;) {
        int64_t value, before = w->count ? w->width[w->count - 1] : 1;
        if (w->count == RAVEL__MOST_WIDTHS || !take_number(&rest, ",", w->pool, &value) || value < 1 ||
            value % before || (w->count && value == before))
            return bad_widths(text, w->pool, err);
        w->width[w->count++] = (int32_t)value;
        if (!*rest) return RAVEL_OK;
        rest++;
    }
}

static void default_widths(ravel__widths *w) {
    for (int32_t k = 1; k < w->pool && w->pool % k == 0; k *= 2) w->width[w->count++] = k;
    w->width[w->count++] = w->pool;
    RAVEL_ASSERT(w->count <= RAVEL__MOST_WIDTHS);
}

/* ---- prices --------------------------------------------------------------------------------------------------- */

/* Kernels on short shards and ring traffic, per doubling; the slower network beyond a node. */
enum { PER_DOUBLING = 30, BEYOND_NODE = 150 };

static void default_prices(int32_t node, ravel__widths *w) {
    for (int32_t i = 0; i < w->count; i++) {
        for (int32_t k = w->width[i]; k > 1; k = (k + 1) / 2) w->price[i] += PER_DOUBLING;
        if (w->width[i] > node) w->price[i] += BEYOND_NODE;
    }
}

static ravel_status bad_prices(const char *text, const char *why, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "cp-price \"%.60s\" %s; it must be WIDTH:PER-MILLE with a price for every width but 1, such "
                           "as 2:30,4:60,8:90",
                           text, why);
}

static ravel_status read_prices(const char *text, ravel__widths *w, ravel_error *err) {
    int32_t seen[RAVEL__MOST_WIDTHS] = {0};
    for (const char *rest = text;;) {
        int64_t width, price;
        int32_t at = 0;
        if (!take_number(&rest, ":", 1 << 20, &width) || *rest++ != ':' ||
            !take_number(&rest, ",", RAVEL__PRICE_MOST, &price))
            return bad_prices(text, "cannot be read", err);
        while (at < w->count && w->width[at] != width) at++;
        if (at < w->count) { /* prices of widths that do not exist here do no harm: one list for all pools */
            w->price[at] = price;
            seen[at] = 1;
        }
        if (!*rest) break;
        rest++;
    }
    for (int32_t i = 0; i < w->count; i++)
        if (!seen[i] && w->width[i] > 1) return bad_prices(text, "lacks a width", err);
    return RAVEL_OK;
}

/* ---- slots ---------------------------------------------------------------------------------------------------- */

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static int64_t at_least_1(int64_t x) {
    return x < 1 ? 1 : x;
}

static int64_t multiple_of(const ravel_plan_options *o, int64_t width) {
    int64_t parts = width == 1 ? 1 : o->cp_split == RAVEL_CP_SPLIT_ZIGZAG ? 2 * width : width;
    return common_multiple(at_least_1(o->align), parts * at_least_1(o->cp_tp));
}

int64_t ravel_plan_slot(const ravel_plan_options *o, int64_t length, int32_t width) {
    int64_t multiple = width > 0 ? multiple_of(o, width) : ravel_plan_align(o);
    if (multiple < 1) return 0;
    return (length + multiple - 1) / multiple * multiple;
}

static void set_slots(const ravel_plan_options *o, ravel__widths *w) {
    for (int32_t i = 0; i < w->count; i++) {
        w->multiple[i] = multiple_of(o, w->width[i]);
        RAVEL_ASSERT(w->multiple[i] > 0);
        w->room[i] = w->width[i] * o->budget / w->multiple[i] * w->multiple[i];
    }
}

/* A width is dropped where its slot multiple is so large that it holds less than a narrower width. */
static void drop_useless(ravel__widths *w) {
    int32_t kept = 0;
    for (int32_t i = 0; i < w->count; i++) {
        if (w->room[i] < 1 || (kept && w->room[i] < w->room[kept - 1])) continue;
        w->width[kept] = w->width[i];
        w->price[kept] = w->price[i];
        w->multiple[kept] = w->multiple[i];
        w->room[kept++] = w->room[i];
    }
    w->count = kept;
}

static void drop_narrow(int32_t least, ravel__widths *w) {
    int32_t kept = 0;
    for (int32_t i = 0; i < w->count; i++)
        if (w->width[i] >= least) w->width[kept++] = w->width[i];
    w->count = kept;
}

ravel_status ravel__widths_make(const ravel_plan_options *o, ravel__widths *w, ravel_error *err) {
    memset(w, 0, sizeof *w);
    w->pool = o->cp_pool;
    ravel_status status = RAVEL_OK;
    if (o->cp_widths)
        status = read_widths(o->cp_widths, w, err);
    else
        default_widths(w);
    if (status) return status;
    drop_narrow(o->min_cp, w);
    if (!w->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "min-cp %d is above every width of the pool of %d", o->min_cp,
                               o->cp_pool);
    if (o->cp_price)
        status = read_prices(o->cp_price, w, err);
    else
        default_prices(o->cp_node, w);
    if (status) return status;
    set_slots(o, w);
    drop_useless(w);
    if (!w->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the budget of %lld tokens per rank holds no slot at any width of the pool of %d (align "
                               "%d, cp-tp %d); raise budget",
                               (long long)o->budget, o->cp_pool, o->align, o->cp_tp);
    for (int32_t i = 1; i < w->count; i++)
        RAVEL_ASSERT(w->width[i] % w->width[i - 1] == 0 && w->room[i] >= w->room[i - 1]);
    RAVEL_ASSERT(w->width[w->count - 1] <= w->pool);
    w->rising = 1;
    for (int32_t i = 1; i < w->count; i++) w->rising = w->rising && w->price[i] >= w->price[i - 1];
    return RAVEL_OK;
}

_Static_assert(RAVEL__MOST_WIDTHS == RAVEL_FIT_WIDTHS, "plan.h says how many widths there can be");

/* ---- options ------------------------------------------------------------------------------------------------- */

ravel_status ravel__hybrid_options_check(ravel_plan_options *o, ravel_error *err) {
    const struct {
        const char *name, *need;
        int wrong;
    } rows[] = {
        {"dp", "1: the pool has all ranks", o->dp != 1 && o->dp != o->cp_pool},
        {"cp", "1: each group has its own width", o->cp != 1},
        {"layout", "packed", o->layout != RAVEL_LAYOUT_PACKED},
        {"sync", "micro-step: groups meet in every micro-step", o->sync != RAVEL_SYNC_MICRO_STEP},
        {"method", "ravel", o->method != RAVEL_METHOD_RAVEL},
        {"group-rule", "free or update", o->group_rule == RAVEL_GROUPS_RANK},
        {"oversize", "error or skip: a long sample takes a wide group", o->oversize == RAVEL_OVERSIZE_ALONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].wrong)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp-pool is %d; %s must then be %s", o->cp_pool, rows[i].name,
                                   rows[i].need);
    if (o->updates > 1 && o->samples_per_update > 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "updates is %d and samples-per-update is %lld; give one of them",
                               o->updates, (long long)o->samples_per_update);
    ravel__widths widths;
    o->dp = o->cp_pool;
    return ravel__widths_make(o, &widths, err);
}

int32_t ravel_plan_widths(const ravel_plan_options *options, int32_t *widths) {
    ravel__widths found;
    if (options->cp_pool < 1 || ravel__widths_make(options, &found, NULL)) return 0;
    for (int32_t i = 0; i < found.count; i++) widths[i] = found.width[i];
    return found.count;
}

int64_t ravel_plan_cp_price(const ravel_plan_options *options, int32_t width) {
    ravel__widths one = {.pool = width, .count = 1, .width = {width}};
    if (width < 1) return -1;
    if (options->cp_price && read_prices(options->cp_price, &one, NULL)) return -1;
    if (!options->cp_price) default_prices(options->cp_node, &one);
    return one.price[0];
}
