/* A cost model from measured times: weighted least squares in three unknowns (seconds per token, per squared token, per
 * micro-step), each row divided by its seconds, so that relative errors count; a coefficient that would be negative is
 * left out. Rows are then weighted by how near they are, and fitted again, a few times: so outliers (an update in which
 * a kernel was tuned, or another process ran) have little weight. Then one factor for each further width. The
 * prediction error is measured by five-fold cross-validation: every fifth row is predicted by a fit of the others. */
#include "plan/internal.h"

#include "base/assert.h"
#include "plan/cost_fit.h"

#include <math.h>
#include <string.h>

enum { UNKNOWNS = 3, FOLDS = 5, ALL = -1, ROUNDS = 20 };
static const double NEAR = 0.01, FAR = 0.25; /* relative errors that count in full, and that are of a row alone */

/* Measurements, of which those of one fold are kept apart (ALL: none). */
typedef struct rows {
    const ravel_cost_sample *at;
    int64_t count;
    int32_t apart;
} rows;

static int is_apart(const rows *r, int64_t i) {
    RAVEL_ASSERT(i >= 0 && i < r->count && r->apart >= ALL && r->apart < FOLDS);
    return r->apart != ALL && i % FOLDS == r->apart;
}

static int is_used(const rows *r, int64_t i, int32_t width) {
    return r->at[i].width == width && !is_apart(r, i);
}

/* ---- least squares --------------------------------------------------------------------------------------- */

/* Gauss with pivots over the unknowns of `mask`; 0 if the rows do not determine them. */
static int solve(const double a[UNKNOWNS][UNKNOWNS + 1], int mask, double *x) {
    RAVEL_ASSERT(mask > 0 && mask < 1 << UNKNOWNS);
    double m[UNKNOWNS][UNKNOWNS + 1];
    int at[UNKNOWNS] = {0}, n = 0;
    for (int i = 0; i < UNKNOWNS; i++) {
        x[i] = 0;
        if (mask >> i & 1) at[n++] = i;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) m[i][j] = a[at[i]][at[j]];
        m[i][n] = a[at[i]][UNKNOWNS];
    }
    for (int c = 0; c < n; c++) {
        int pivot = c;
        for (int r = c + 1; r < n; r++)
            if (fabs(m[r][c]) > fabs(m[pivot][c])) pivot = r;
        if (!(fabs(m[pivot][c]) > 1e-12 * (1 + fabs(a[at[c]][at[c]])) * 1e-3)) return 0;
        for (int j = 0; j <= n; j++) {
            double swap = m[c][j];
            m[c][j] = m[pivot][j];
            m[pivot][j] = swap;
        }
        for (int r = 0; r < n; r++) {
            double factor = m[r][c] / m[c][c];
            for (int j = c; r != c && j <= n; j++) m[r][j] -= factor * m[c][j];
        }
    }
    for (int i = 0; i < n; i++) x[at[i]] = m[i][n] / m[i][i];
    return 1;
}

static double squared_error(const double a[UNKNOWNS][UNKNOWNS + 1], const double *x, double count) {
    double e = count; /* sum of (1 - row . x)^2 */
    for (int i = 0; i < UNKNOWNS; i++) {
        e -= 2 * x[i] * a[i][UNKNOWNS];
        for (int j = 0; j < UNKNOWNS; j++) e += x[i] * a[i][j] * x[j];
    }
    return e;
}

static double weight_of(const double *row, const double *x) {
    double error = fabs(1 - row[0] * x[0] - row[1] * x[1] - row[2] * x[2]);
    return 1 / (error > NEAR ? error : NEAR);
}

/* The best of all subsets of the unknowns that has no negative one; rows are weighted by their errors with `before`,
 * where that is given. Columns are scaled to one size first. */
static int fit_three(const rows *r, int32_t width, const double *before, double *x) {
    RAVEL_ASSERT(width >= 1);
    double a[UNKNOWNS][UNKNOWNS + 1] = {{0}}, scale[UNKNOWNS] = {0}, used = 0, best = INFINITY;
    const ravel_cost_sample *s = r->at;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < r->count; i++) {
            if (!is_used(r, i, width)) continue;
            double row[UNKNOWNS] = {s[i].tokens / width, s[i].squares / width, s[i].micro_steps};
            for (int j = 0; j < UNKNOWNS; j++) row[j] /= s[i].seconds;
            double weight = before ? weight_of(row, before) : 1;
            for (int j = 0; j < UNKNOWNS; j++) {
                if (!pass && row[j] > scale[j]) scale[j] = row[j];
                if (pass) row[j] = scale[j] > 0 ? row[j] / scale[j] : 0;
            }
            if (!pass) continue;
            used += weight;
            for (int j = 0; j < UNKNOWNS; j++) {
                for (int k = 0; k < UNKNOWNS; k++) a[j][k] += weight * row[j] * row[k];
                a[j][UNKNOWNS] += weight * row[j];
            }
        }
    for (int mask = 1; mask < 1 << UNKNOWNS; mask++) {
        double trial[UNKNOWNS];
        if (!solve((const double(*)[UNKNOWNS + 1]) a, mask, trial)) continue;
        double e = squared_error((const double(*)[UNKNOWNS + 1]) a, trial, used);
        if (trial[0] < 0 || trial[1] < 0 || trial[2] < 0 || !(e < best)) continue;
        best = e;
        memcpy(x, trial, sizeof trial);
    }
    for (int j = 0; j < UNKNOWNS; j++) x[j] = scale[j] > 0 ? x[j] / scale[j] : 0;
    return best < INFINITY;
}

/* ---- prices ---------------------------------------------------------------------------------------------- */

/* The factor by which the compute part of this width is slower than its share of the work. */
static double factor_of(const rows *r, int32_t width, const double *x) {
    double above = 0, below = 0;
    const ravel_cost_sample *s = r->at;
    for (int64_t i = 0; i < r->count; i++) {
        if (!is_used(r, i, width)) continue;
        double ideal = (x[0] * s[i].tokens + x[1] * s[i].squares) / width / s[i].seconds;
        double rest = 1 - x[2] * s[i].micro_steps / s[i].seconds;
        above += ideal * rest;
        below += ideal * ideal;
    }
    return below > 0 ? above / below : 1;
}

static int has_width(const ravel_cost_fit *f, int32_t width) {
    for (int32_t i = 0; i < f->widths; i++)
        if (f->width[i] == width) return 1;
    return 0;
}

static void list_widths(const ravel_cost_sample *s, int64_t count, ravel_cost_fit *f) {
    for (int32_t last = 0; f->widths < RAVEL_FIT_WIDTHS; f->widths++) {
        int32_t next = INT32_MAX;
        for (int64_t i = 0; i < count; i++)
            if (s[i].width > last && s[i].width < next) next = s[i].width;
        if (next == INT32_MAX) return;
        RAVEL_ASSERT(next > last && f->widths < RAVEL_FIT_WIDTHS);
        f->width[f->widths] = last = next;
    }
}

static void set_prices(const rows *r, const double *x, ravel_cost_fit *f) {
    for (int32_t i = 1; i < f->widths; i++) {
        double price = 1000 * (factor_of(r, f->width[i], x) - 1);
        f->price[i] = price < 0 ? 0 : price > 1e6 ? 1000000 : (int32_t)lround(price);
    }
}

/* ---- front ----------------------------------------------------------------------------------------------- */

/* Integers whose ratios are those of x, with at least four digits for the smallest that matters. */
static void set_cost(const double *x, ravel_cost_fit *f) {
    RAVEL_ASSERT(x[0] >= 0 && x[1] >= 0 && x[2] >= 0 && (x[0] > 0 || x[1] > 0));
    double unit = x[1] > 0 ? x[1] / 4096 : x[0] > 0 ? x[0] / 1048576 : x[2] / 1048576;
    while (x[0] / unit > 0x1p40 || x[2] / unit > 0x1p52) unit *= 2;
    RAVEL_ASSERT(unit > 0);
    f->unit = unit;
    f->cost = (ravel_cost){llround(x[0] / unit), llround(x[1] / unit), llround(x[2] / unit)};
}

double ravel__cost_fit_seconds(const ravel_cost_fit *f, const ravel_cost_sample *s) {
    int32_t w = 0;
    while (w + 1 < f->widths && f->width[w] != s->width) w++;
    double work = (double)f->cost.linear * s->tokens + (double)f->cost.quadratic * s->squares;
    return f->unit * (work / s->width * (1 + f->price[w] / 1000.0) + (double)f->cost.overhead * s->micro_steps);
}

typedef struct errors {
    double sum, worst;
    int64_t count, far;
} errors;

static void add_error(const ravel_cost_fit *f, const ravel_cost_sample *s, errors *e) {
    RAVEL_ASSERT(s->seconds > 0);
    double error = fabs(ravel__cost_fit_seconds(f, s) / s->seconds - 1);
    if (error > FAR) {
        e->far++;
        return;
    }
    e->count++;
    e->sum += error;
    if (error > e->worst) e->worst = error;
}

static double mean_of(const errors *e) {
    return e->count ? e->sum / (double)e->count : 0;
}

/* Linear, quadratic, overhead and prices, without the errors; 0 if the rows do not determine them. */
static int fit_rows(const rows *r, ravel_cost_fit *f) {
    RAVEL_ASSERT(f->widths >= 1);
    double x[UNKNOWNS] = {0}, before[UNKNOWNS];
    if (!fit_three(r, f->width[0], NULL, x)) return 0;
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(before, x, sizeof x);
        if (!fit_three(r, f->width[0], before, x)) return 0;
    }
    if (!(x[0] > 0 || x[1] > 0)) return 0;
    set_cost(x, f);
    set_prices(r, x, f);
    return 1;
}

/* The error stays 0 if there are too few rows to keep any apart. */
static void try_apart(const ravel_cost_sample *s, int64_t count, ravel_cost_fit *f) {
    ravel_cost_fit trial = *f;
    errors e = {0};
    for (int32_t fold = 0; fold < FOLDS && count >= 4 * FOLDS; fold++) {
        if (!fit_rows(&(rows){s, count, fold}, &trial)) continue;
        for (int64_t i = fold; i < count; i += FOLDS) add_error(&trial, &s[i], &e);
    }
    f->apart_error = mean_of(&e);
    f->apart_worst = e.worst;
}

static void set_errors(const ravel_cost_sample *s, int64_t count, ravel_cost_fit *f) {
    errors e = {0};
    for (int64_t i = 0; i < count; i++) add_error(f, &s[i], &e);
    f->error = mean_of(&e);
    f->worst_error = e.worst;
    f->far = e.far;
    try_apart(s, count, f);
}

static ravel_status check(const ravel_cost_sample *s, int64_t count, ravel_error *err) {
    if (count < 4)
        return ravel_error_set(err, RAVEL_E_DATA, "%lld measurements; a cost model needs at least 4", (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!(s[i].tokens > 0 && s[i].squares > 0 && s[i].micro_steps >= 0 && s[i].seconds > 0 && s[i].width > 0) ||
            !(s[i].tokens < 1e18 && s[i].squares < 1e30 && s[i].micro_steps < 1e12 && s[i].seconds < 1e12))
            return ravel_error_set(
                err, RAVEL_E_DATA,
                "measurement %lld has %g tokens, %g squares, %g micro-steps, %g seconds and width %d; "
                "they must be positive and finite",
                (long long)i, s[i].tokens, s[i].squares, s[i].micro_steps, s[i].seconds, s[i].width);
    return RAVEL_OK;
}

ravel_status ravel_cost_fit_make(const ravel_cost_sample *samples, int64_t count, ravel_cost_fit *fit,
                                 ravel_error *err) {
    ravel_cost_fit f = {.size = sizeof f, .samples = count};
    ravel_status status = check(samples, count, err);
    if (status) return status;
    list_widths(samples, count, &f);
    for (int64_t i = 0; i < count; i++)
        if (!has_width(&f, samples[i].width))
            return ravel_error_set(err, RAVEL_E_DATA, "measurements have more than %d widths", RAVEL_FIT_WIDTHS);
    if (!fit_rows(&(rows){samples, count, ALL}, &f))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the measurements of width %d do not determine a cost; vary their lengths", f.width[0]);
    set_errors(samples, count, &f);
    *fit = f;
    return RAVEL_OK;
}
