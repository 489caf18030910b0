/* timeline.jsonl of a run on a mesh: every rank of every update, at its place in the mesh, and spans that make up the time. */
#include "tests/unit/train_job.h"

#include "train/learn/layout.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>

static double number(const ravel__json *doc, const ravel__json_node *object, const char *key) {
    double value = NAN;
    return ravel__json_real(ravel__json_get(doc, object, key), &value) ? value : NAN;
}

static void check_rank(const ravel__json *doc, const ravel__json_node *n, const ravel_mesh_layout *layout,
                       int32_t rank) {
    static const char *const axes[] = {"tp", "cp", "dp", "pp"};
    static const char *const spans[] = {"forward", "backward", "tp_wait", "cp_wait", "pp_wait"};
    ravel_mesh_coord at = ravel_mesh_locate(layout, rank);
    const int32_t places[] = {at.tp, at.cp, at.dp, at.pp};
    double sum = 0, seconds = number(doc, n, "seconds");
    for (int i = 0; i < 4; i++) CHECK(number(doc, n, axes[i]) == places[i]);
    for (int i = 0; i < 5; i++) sum += number(doc, n, spans[i]);
    double slack = 1e-4 * seconds + 1e-5; /* they are written with six digits */
    CHECK(sum <= seconds + slack);        /* without stages, time between operations is in no span */
    if (layout->sizes[3] > 1) CHECK(sum >= seconds - slack);
    CHECK(number(doc, n, "forward") > 0 && number(doc, n, "backward") > 0 && number(doc, n, "finish") > 0);
    CHECK((number(doc, n, "tp_wait") > 0) == (layout->sizes[0] > 1));
    CHECK((number(doc, n, "cp_wait") > 0) == (layout->sizes[1] > 1));
}

static void check_row(const ravel__json *doc, const ravel_mesh_layout *layout, int64_t row) {
    const ravel__json_node *root = ravel__json_root(doc), *list = ravel__json_get(doc, root, "ranks");
    double bubble = number(doc, root, "bubble"), predicted = number(doc, root, "bubble_predicted");
    int32_t rank = 0;
    CHECK(number(doc, root, "step") == (double)row && list);
    for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n))
        check_rank(doc, n, layout, rank++);
    CHECK_EQ(rank, layout->ranks);
    CHECK(bubble >= 0 && bubble < 1 && predicted >= 0 && predicted < 1);
    CHECK((predicted > 0) == (layout->sizes[3] > 1) && (bubble > 0) == (layout->sizes[3] > 1));
}

TEST(train_timeline_has_every_rank_of_every_update) {
    static const int32_t meshes[][4] = {{2, 1, 1, 2}, {1, 2, 2, 1}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char folder[64], path[128], *line = NULL;
        size_t room = 0;
        int64_t rows = 0;
        ravel__json *doc = NULL;
        ravel_mesh_layout layout;
        train_config c;
        curve loss, exposed;
        job_folder(folder);
        job_config(&c, folder);
        c.run.steps = 3;
        c.run.checkpoint_end = 0;
        c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
        CHECK(ravel_mesh_plan(&c.mesh, 4, &layout, NULL) == RAVEL_OK);
        if (!job_run(&c, TRAIN_SFT, 4, "train/loss", &loss)) return;
        job_curve(folder, i ? "comm/cp_exposed_share" : "comm/tp_exposed_share", &exposed);
        CHECK_EQ(exposed.count, 3);
        for (int u = 0; u < exposed.count; u++) CHECK(exposed.values[u] > 0 && exposed.values[u] < 1);
        (void)snprintf(path, sizeof path, "%s/timeline.jsonl", folder);
        FILE *f = fopen(path, "r");
        for (ssize_t n; f && (n = getline(&line, &room, f)) > 0;) {
            CHECK(ravel__json_parse(line, (size_t)n, NULL, &doc, NULL) == RAVEL_OK);
            check_row(doc, &layout, ++rows);
        }
        CHECK_EQ(rows, 3);
        ravel__json_free(doc);
        free(line);
        if (f) (void)fclose(f);
        job_wipe(folder);
    }
}
