/* ravel/report.h (experimental): a plan as JSON, CSV, page and picture.
 *
 *   ravel_plan_json   the stable contract: one object with version, options, digest, bins and stats (docs/formats.md)
 *   ravel_plan_csv    one row per bin
 *   ravel_plan_html   one page that needs no network: every micro-step's bins as bars, padding and idle time shaded,
 *                     details under the pointer, light and dark
 *   ravel_plan_svg    a small still picture of the whole plan, for notebooks
 *   ravel_cost_read   what --cost takes
 *
 * All of them take the input and the options that the plan was made from, and hand out text in pieces to `write`; they
 * allocate nothing that grows with the plan and can be called from any thread.
 *
 *     static ravel_status to_file(void *user, const char *text, size_t bytes, ravel_error *err) {
 *         if (fwrite(text, 1, bytes, user) == bytes) return RAVEL_OK;
 *         return ravel_error_set(err, RAVEL_E_IO, "the disk is full");
 *     }
 *     ravel_plan_html(&input, &options, plan, "my batch", to_file, file, &err);
 */
#ifndef RAVEL_REPORT_H
#define RAVEL_REPORT_H

#include <ravel/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the next piece. Anything but RAVEL_OK ends the writing and is what the call returns. */
typedef ravel_status (*ravel_write)(void *user, const char *text, size_t bytes, ravel_error *err);

RAVEL_API ravel_status ravel_plan_json(const ravel_plan_input *input, const ravel_plan_options *options,
                                       const ravel_plan *plan, ravel_write write, void *user, ravel_error *err);
RAVEL_API ravel_status ravel_plan_csv(const ravel_plan_input *input, const ravel_plan_options *options,
                                      const ravel_plan *plan, ravel_write write, void *user, ravel_error *err);
/* `title` may be NULL. Samples are drawn one by one up to RAVEL_HTML_SAMPLES of them; a larger plan shows its bins
 * whole, and of a plan with more than RAVEL_HTML_BINS bins the page shows the first micro-steps, with a note. */
#define RAVEL_HTML_SAMPLES 1000000
#define RAVEL_HTML_BINS    400000
RAVEL_API ravel_status ravel_plan_html(const ravel_plan_input *input, const ravel_plan_options *options,
                                       const ravel_plan *plan, const char *title, ravel_write write, void *user,
                                       ravel_error *err);
RAVEL_API ravel_status ravel_plan_svg(const ravel_plan_input *input, const ravel_plan_options *options,
                                      const ravel_plan *plan, ravel_write write, void *user, ravel_error *err);

/* A cost model by a word: "tokens", LINEAR:QUADRATIC[:OVERHEAD], a model's config.json (or its folder) or a published
 * shape's name, or a file that `ravel plan --fit --json` wrote. The width prices of such a file go to prices[room],
 * which is "" for the others; room may be 0. */
RAVEL_API ravel_status ravel_cost_read(const char *text, ravel_cost *cost, char *prices, size_t room, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
