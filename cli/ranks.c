#include "cli/ranks.h"

#include "base/system/team.h"
#include "train/learn/layout.h"
#include "train/run/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files of several words ------------------------------------------------------------------------------- */

static int takes_files(const char *word) {
    return strcmp(word, "--data") == 0 || strcmp(word, "--eval-data") == 0;
}

void cli_free_joined(cli_joined *j) {
    for (int i = 0; i < j->count; i++) free(j->texts[i]);
    free(j->words);
}

int cli_join_files(int argc, char **argv, cli_joined *j) {
    int n = 0;
    j->words = calloc((size_t)argc + 1, sizeof *j->words);
    for (int i = 0; i < argc && j->words; i++) {
        int more = 0;
        j->words[n++] = argv[i];
        if (!takes_files(argv[i])) continue;
        while (i + 1 + more < argc && strncmp(argv[i + 1 + more], "--", 2) != 0) more++;
        if (more < 2 || j->count == 8) continue;
        char *text = train_files_join((const char *const *)argv + i + 1, more, ' ');
        if (!text) return 0;
        j->words[n++] = j->texts[j->count++] = text;
        i += more;
    }
    return j->words ? n : 0;
}

/* ---- ranks ------------------------------------------------------------------------------------------------ */

static ravel_status choose_threads(train_config *c, int32_t busy_ranks, ravel_error *err) {
    ravel_shape shape;
    ravel_status status = train_shape(&c->model, &shape, err);
    if (status) return status;
    c->model.threads = train_threads(&c->model, &shape, c->plan.budget ? c->plan.budget : 4096,
                                     ravel__processors(RAVEL__TEAM_MOST), busy_ranks);
    RAVEL_ASSERT(c->model.threads >= 1 && busy_ranks > 0);
    return RAVEL_OK;
}

/* Before ranks are started: checks that the model can be cut for the mesh; the error depends on whether --ranks was
 * given. */
static ravel_status check_mesh(const train_config *c, ravel_error *err) {
    ravel_shape shape;
    ravel_mesh_layout layout;
    ravel_status status = train_shape(&c->model, &shape, err);
    return status ? status : train_layout_plan(&c->mesh, c->run.ranks, &shape, &layout, err);
}

ravel_status cli_ranks_run(cli_ranks *r, ravel_rank_fn work, void *user, ravel_error *err) {
    ravel_comm *comm = NULL;
    ravel_status status = RAVEL_OK;
    r->comm->timeout = r->config->run.timeout;
    if (strcmp(ravel_comm_auto_kind(r->comm), "self") == 0) {
        r->first = 1;
        status = check_mesh(r->config, err);
        if (!status) status = choose_threads(r->config, r->busy, err);
        if (!status && r->met) r->met(1);
        return status ? status : ravel_threads_run(r->count, r->comm, work, user, err);
    }
    int32_t neighbours = 1;
    status = ravel_comm_open("auto", r->comm, &comm, err);
    if (status) return status;
    r->first = ravel_comm_rank(comm) == 0;
    r->processes = ravel_comm_size(comm);
    (void)snprintf(r->by, sizeof r->by, "%s", ravel_comm_kind(comm));
    status = ravel_comm_neighbours(comm, &neighbours, err);
    if (!status) status = choose_threads(r->config, neighbours, err);
    if (!status && r->met) r->met(r->first);
    if (!status) status = work(comm, user, err);
    if (status) ravel_comm_abort(comm, err);
    ravel_comm_free(comm);
    return status;
}
