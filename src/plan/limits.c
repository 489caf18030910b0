#include "plan/limits.h"

#include "base/assert.h"

#include <ravel/plan.h>

#define COMMON_FAST                                                                                            \
    .groups = {4, 16, 2, 18}, .group_trades_per_sample = 64, .assignment_work = 1 << 22, .compare_samples = 0, \
    .pack_samples = 0
#define COMMON_DEFAULT                                                                                             \
    .groups = {4, 16, 2, 18}, .group_trades_per_sample = 64, .assignment_work = 1 << 22, .compare_samples = 65536, \
    .compare_always_samples = 2048, .pack_samples = 16384

static const ravel__search_limits table[] = {
    {.effort = RAVEL_EFFORT_FAST,
     .most_samples = INT64_MAX,
     .steps = {1, 0, 1, 12},
     .ranks = {2, 2, 1, 14},
     .repair_passes = 1,
     .repair_partners = 16,
     .starts = 1,
     .trades_per_sample = 64,
     COMMON_FAST},
    {.effort = RAVEL_EFFORT_DEFAULT, /* very short */
     .most_samples = 512,
     .thorough = 1,
     .steps = {6, 16, 2, 19},
     .ranks = {32, 32, 2, 21},
     .repair_passes = 3,
     .repair_partners = 64,
     .starts = 9,
     .trades_per_sample = 256,
     .redeal_trades_per_sample = 256,
     COMMON_DEFAULT},
    {.effort = RAVEL_EFFORT_DEFAULT, /* short */
     .most_samples = 2048,
     .steps = {6, 16, 2, 19},
     .ranks = {32, 32, 2, 21},
     .repair_passes = 3,
     .repair_partners = 64,
     .starts = 2,
     .trades_per_sample = 256,
     COMMON_DEFAULT},
    {.effort = RAVEL_EFFORT_DEFAULT, /* many samples per bin: finer trades */
     .most_samples = INT64_MAX,
     .least_per_bin = 12,
     .steps = {6, 8, 2, 26},
     .ranks = {16, 16, 2, 26},
     .repair_passes = 3,
     .repair_partners = 48,
     .starts = 1,
     .trades_per_sample = 256,
     COMMON_DEFAULT},
    {.effort = RAVEL_EFFORT_DEFAULT, /* enough of them to repair bins that are nearly full */
     .most_samples = 32768,
     .least_per_bin = 10,
     .steps = {6, 8, 1, 19},
     .ranks = {16, 16, 1, 20},
     .repair_passes = 8,
     .repair_partners = 128,
     .starts = 1,
     .trades_per_sample = 128,
     COMMON_DEFAULT},
    {.effort = RAVEL_EFFORT_DEFAULT,
     .most_samples = INT64_MAX,
     .steps = {6, 8, 1, 19},
     .ranks = {16, 16, 1, 20},
     .repair_passes = 3,
     .repair_partners = 48,
     .starts = 1,
     .trades_per_sample = 128,
     COMMON_DEFAULT},
    {.effort = RAVEL_EFFORT_MAX,
     .most_samples = INT64_MAX,
     .thorough = 1,
     .steps = {6, 16, 3, 20},
     .ranks = {64, 64, 3, 22},
     .groups = {4, 16, 2, 18},
     .repair_passes = 8,
     .repair_partners = 128,
     .starts = 9,
     .trades_per_sample = 512,
     .redeal_trades_per_sample = 1024,
     .group_trades_per_sample = 1024,
     .pack_samples = INT64_MAX,
     .compare_samples = 65536,
     .compare_always_samples = INT64_MAX,
     .assignment_work = 1 << 26},
};

const ravel__search_limits *ravel__search_limits_for(int32_t effort, int64_t samples, int64_t per_bin) {
    RAVEL_ASSERT(samples >= 0 && effort >= RAVEL_EFFORT_FAST && effort <= RAVEL_EFFORT_MAX);
    const ravel__search_limits *row = table;
    while (row->effort != effort || samples > row->most_samples || per_bin < row->least_per_bin) {
        row++;
        RAVEL_ASSERT(row < table + sizeof table / sizeof *table); /* every effort has a row without limits */
    }
    return row;
}
