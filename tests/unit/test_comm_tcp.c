/* The tcp back end: ranks that meet at a rendezvous. They are threads here, each with a world of its own, which is what
 * processes would be; tests/suites/34-tcp.sh does it with processes. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/ports.h"

#include "base/system/clock.h"
#include "comm/link/address.h"
#include "comm/launch.h"
#include "comm/link/link_state.h"
#include "comm/tcp.h"
#include "comm/link/token.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- ranks as threads ----------------------------------------------------------------------------------- */

typedef struct tcp_world {
    ravel_comm_options options; /* rank below 0: only rank 0 has a number */
    int32_t ranks;
} tcp_world;

static ravel_status open_rank(void *world, int32_t rank, ravel_comm **comm, ravel_error *err) {
    const tcp_world *w = world;
    ravel_comm_options o = w->options;
    o.ranks = w->ranks, o.rank = o.rank < 0 && rank > 0 ? -1 : rank;
    return ravel_comm_tcp(&o, comm, err);
}

static ravel_status run_ranks(int32_t count, const ravel_comm_options *options, ravel_rank_fn work, void *user,
                              ravel_error *err) {
    tcp_world world = {*options, count};
    return comm_ranks_run(count, open_rank, &world, work, user, err);
}

static ravel_comm_options options_at(const char *rendezvous, double timeout) {
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.rendezvous = rendezvous;
    o.timeout = timeout;
    o.rank = 0;
    return o;
}

/* A place that no other test uses. */
static const char *fresh_place(char *text, size_t bytes) {
    static int count;
    (void)snprintf(text, bytes, "unix:@ravel-test-%d-%d", (int)getpid(), ++count);
    return text;
}

/* Without checks of agreement too: with sanitizers, on 3 ranks only. */
TEST(comm_tcp_runs_the_body) {
    static const int32_t sizes[] = {1, 2, 3, 5, 8};
    char place[64];
    for (int i = 0; i < 5; i++)
        for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1))
            for (int check = 1; check >= (check_sanitized() && sizes[i] != 3); check--) {
                body_job b = {{check_seed(), (int32_t)check_rounds(60, 1000), 700, !check, 0}, body};
                ravel_error err = RAVEL_ERROR_INIT;
                ravel_comm_options o = options_at(fresh_place(place, sizeof place), 60);
                o.check = check;
                ravel_status status = run_ranks(sizes[i], &o, comm_body_run, &b, &err);
                if (status)
                    check_fail(__FILE__, __LINE__, "%d ranks, %s: %s: %s", sizes[i], body->name,
                               ravel_status_name(status), err.message);
            }
}

/* Over TCP sockets, which ranks of one machine do not use otherwise: plain ones, and encrypted ones. */
static ravel_status open_remote(void *world, int32_t rank, ravel_comm **comm, ravel_error *err) {
    const tcp_world *w = world;
    ravel_comm_options o = w->options;
    o.ranks = w->ranks, o.rank = rank, o.listen = rank == 0 ? o.rendezvous : "127.0.0.1:0";
    return ravel_comm_tcp(&o, comm, err);
}

TEST(comm_tcp_runs_the_body_over_sockets_of_the_network_plain_and_encrypted) {
    char place[32];
    for (int tls = 0; tls < 2; tls++)
        for (const comm_body *body = comm_bodies; body->name; body++) {
            body_job b = {{check_seed(), (int32_t)check_rounds(40, 1000), 700, 0, 0}, body};
            ravel_error err = RAVEL_ERROR_INIT;
            (void)snprintf(place, sizeof place, "127.0.0.1:%d", ports_free("127.0.0.1"));
            tcp_world world = {options_at(place, 60), 3};
            world.options.tls = tls;
            ravel_status status = comm_ranks_run(3, open_remote, &world, comm_body_run, &b, &err);
            if (tls && strstr(err.message, "libravel_tls.so")) check_skip("no TLS module: libssl-dev is not installed");
            if (status)
                check_fail(__FILE__, __LINE__, "%s, %s: %s: %s", tls ? "TLS" : "TCP", body->name,
                           ravel_status_name(status), err.message);
        }
}

/* ---- many senders --------------------------------------------------------------------------------------- */

enum { FLOOD_MESSAGES = 60, FLOOD_WORDS = 1900 };

static int64_t flood_word(int32_t rank, int64_t message, int64_t i) {
    return rank * 1000003 + message * 1009 + i;
}

static ravel_status flood_send(ravel_comm *comm, int32_t *words, ravel_error *err) {
    ravel_request *requests[FLOOD_MESSAGES] = {0};
    ravel_status status = RAVEL_OK;
    for (int64_t m = 0; m < FLOOD_MESSAGES && !status; m++) {
        int32_t *at = words + m * FLOOD_WORDS;
        for (int64_t i = 0; i < FLOOD_WORDS; i++) at[i] = (int32_t)flood_word(ravel_comm_rank(comm), m, i);
        status = ravel_comm_isend(comm, at, FLOOD_WORDS, RAVEL_I32, 0, 7, &requests[m], err);
    }
    ravel_status sent = ravel_request_wait_all(requests, FLOOD_MESSAGES, status ? NULL : err);
    return status ? status : sent;
}

static ravel_status flood_receive(ravel_comm *comm, int32_t *words, ravel_error *err) {
    for (int64_t m = 0; m < FLOOD_MESSAGES; m++)
        for (int32_t from = ravel_comm_size(comm) - 1; from > 0; from--) {
            ravel_status status = ravel_comm_recv(comm, words, FLOOD_WORDS, RAVEL_I32, from, 7, err);
            if (status) return status;
            for (int64_t i = 0; i < FLOOD_WORDS; i++)
                if (words[i] != flood_word(from, m, i))
                    return ravel_error_set(err, RAVEL_E_INTERNAL, "message %d of rank %d: word %d is %d", (int)m, from,
                                           (int)i, words[i]);
        }
    return RAVEL_OK;
}

/* All ranks send more to rank 0 than the sockets hold, so that frames come in pieces, over all links at once. */
static ravel_status flood(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t *words = malloc(sizeof *words * FLOOD_MESSAGES * FLOOD_WORDS);
    (void)user;
    if (!words) return RAVEL_E_MEMORY;
    ravel_status status = ravel_comm_rank(comm) ? flood_send(comm, words, err) : flood_receive(comm, words, err);
    free(words);
    return status;
}

TEST(comm_tcp_frames_of_many_ranks_come_in_pieces) {
    char place[64];
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < 5; i++) {
        ravel_comm_options o = options_at(fresh_place(place, sizeof place), 60);
        ravel_status status = run_ranks(5, &o, flood, NULL, &err);
        if (status) check_fail(__FILE__, __LINE__, "%s: %s", ravel_status_name(status), err.message);
    }
}

/* Rank 0 begins to read when the others have long left. */
static ravel_status flood_late(ravel_comm *comm, void *user, ravel_error *err) {
    if (ravel_comm_rank(comm) == 0) (void)nanosleep(&(struct timespec){2, 600000000}, NULL);
    return flood(comm, user, err);
}

TEST(comm_tcp_what_a_rank_sent_before_it_left_arrives) {
    char place[64];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options o = options_at(fresh_place(place, sizeof place), 60);
    ravel_status status = run_ranks(3, &o, flood_late, NULL, &err);
    if (status) check_fail(__FILE__, __LINE__, "%s: %s", ravel_status_name(status), err.message);
}

/* Ranks 1 and 2 come when rank 0 listens and silent connections are there. */
typedef struct silent_world {
    tcp_world world;
    const ravel__address *at;
    int *fds, count;
    _Atomic int connected;
} silent_world;

static ravel_status open_beside(void *user, int32_t rank, ravel_comm **comm, ravel_error *err) {
    silent_world *w = user;
    for (int i = 0; rank == 1 && i < w->count;) {
        w->fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(w->fds[i], (const struct sockaddr *)&w->at->at, w->at->bytes) == 0) {
            i++;
            continue;
        }
        (void)close(w->fds[i]);
        (void)nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    if (rank == 1) w->connected = w->count;
    while (rank == 2 && !w->connected) (void)nanosleep(&(struct timespec){0, 2000000}, NULL);
    return open_rank(&w->world, rank, comm, err);
}

/* ---- the meeting ---------------------------------------------------------------------------------------- */

static ravel_status add_ranks(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t mine = ravel_comm_rank(comm) + 1, sum = 0, n = ravel_comm_size(comm);
    (void)user;
    ravel_status status = ravel_comm_allreduce(comm, &mine, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
    if (!status && sum != n * (n + 1) / 2) status = ravel_error_set(err, RAVEL_E_INTERNAL, "the sum is %d", (int)sum);
    return status;
}

TEST(comm_tcp_ranks_meet_by_address_by_path_by_file_and_without_numbers) {
    char folder[] = "/tmp/ravel-meet-XXXXXX", file[64], path[64], old[40], tcp4[32], tcp6[32];
    CHECK(mkdtemp(folder));
    (void)snprintf(old, sizeof old, "%s/meet", folder);
    (void)snprintf(file, sizeof file, "file:%s", old);
    (void)snprintf(path, sizeof path, "unix:%s/socket", folder);
    (void)snprintf(tcp4, sizeof tcp4, "127.0.0.1:%d", ports_free("127.0.0.1"));
    int port6 = ports_free("::1");
    (void)snprintf(tcp6, sizeof tcp6, "[::1]:%d", port6);
    const char *const places[] = {tcp4, tcp6, path, file, file};
    for (int i = 0; i < 5; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm_options o = options_at(places[i], 60);
        if (i == 1 && !port6) continue;
        o.rank = i % 2 ? -1 : 0;
        if (i == 4) { /* an old file that points nowhere is read again */
            FILE *f = fopen(old, "w");
            CHECK(f && fprintf(f, "unix:@nobody-is-here\n") > 0 && fclose(f) == 0);
        }
        CHECK_OK(run_ranks(4, &o, add_ranks, NULL, &err), &err);
    }
    CHECK(access(old, F_OK) != 0); /* rank 0 removed it */
    CHECK_EQ(rmdir(folder), 0);
}

TEST(comm_tcp_says_who_is_missing_in_time) {
    char place[64];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_comm_options o = options_at(fresh_place(place, sizeof place), 0.3);
    o.ranks = 3;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "missing are ranks 1, 2");
    ravel_error_clear(&err);
    o.timeout = 0.05, o.ranks = 12;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "missing are ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more");
    ravel_error_clear(&err);
    o.ranks = 2;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "missing is rank 1");
    ravel_error_clear(&err);
    o.timeout = 0.3, o.ranks = 3, o.rank = 1;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "within 0.3 s");
    ravel_error_clear(&err);
    o.rank = 3;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "ranks count from 0");
    ravel_error_clear(&err);
    o.rank = 0, o.rendezvous = "0.0.0.0:0", o.timeout = 5;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs a shared token");
    ravel_error_clear(&err);
    o.rendezvous = NULL;
    CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "where do the ranks meet?");
    CHECK(!comm);
}

TEST(comm_launch_reads_slurm_and_torchrun) {
    static const char *const names[] = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODELIST", "SLURM_JOB_ID",
                                        "RANK",         "WORLD_SIZE",   "MASTER_ADDR",    "MASTER_PORT",
                                        "RAVEL_PORT",   "ENVIRONMENT"};
    static const struct {
        const char *set[10]; /* in the order of the names; NULL: not set */
        const char *kind, *where;
        int32_t rank, ranks;
    } cases[] = {
        {{NULL}, "self", NULL, 0, 0},
        {{"2", "8", "gpu[03-05,9],x", "7"}, "tcp", "gpu03:20007", 2, 8},
        {{"2", "8", "alone", "7", NULL, NULL, NULL, NULL, "999"}, "tcp", "alone:999", 2, 8},
        {{"0", "8", "alone", "7", NULL, NULL, NULL, NULL, NULL, "BATCH"}, "self", NULL, 0, 0},
        {{NULL, NULL, NULL, NULL, "3", "4", "10.0.0.1", "29500"}, "tcp", "10.0.0.1:29501", 3, 4},
        {{NULL, NULL, NULL, NULL, "3", "4", "fd00::1", "29500", "77"}, "tcp", "[fd00::1]:77", 3, 4},
        {{NULL, NULL, NULL, NULL, "0", "1", "10.0.0.1", "29500"}, "self", NULL, 0, 0},
    };
    if (ravel__launch_has_mpi()) check_skip("an MPI launcher's environment comes first");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_comm_options o;
        ravel__launch launch;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm_options_default(&o);
        for (size_t k = 0; k < 10; k++)
            if (cases[i].set[k])
                (void)setenv(names[k], cases[i].set[k], 1);
            else
                (void)unsetenv(names[k]);
        CHECK_STR(ravel_comm_auto_kind(&o), cases[i].kind);
        ravel_status status = ravel__launch_find(&o, &launch, &err);
        CHECK_EQ(status, cases[i].where ? RAVEL_OK : RAVEL_E_ARGUMENT);
        if (!cases[i].where) continue;
        CHECK_STR(launch.rendezvous, cases[i].where);
        CHECK(launch.rank == cases[i].rank && launch.ranks == cases[i].ranks);
        o.rendezvous = "h:1", o.ranks = 2, o.rank = 1; /* options override the launcher */
        CHECK_OK(ravel__launch_find(&o, &launch, &err), &err);
        CHECK(launch.rank == 1 && launch.ranks == 2 && strcmp(launch.rendezvous, "h:1") == 0);
    }
    for (size_t k = 0; k < 10; k++) (void)unsetenv(names[k]);
}

/* What the environment or an option says is used or refused, never left out. */
TEST(comm_launch_refuses_what_it_cannot_use) {
    static const char *const ports[] = {"0", "70000", "7x", "-1"};
    char text[RAVEL__TOKEN_MOST + 1], token[RAVEL__TOKEN_MOST];
    ravel_comm_options o;
    ravel__launch launch;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options_default(&o);
    (void)setenv("RANK", "1", 1), (void)setenv("WORLD_SIZE", "2", 1), (void)setenv("MASTER_ADDR", "h", 1);
    (void)setenv("MASTER_PORT", "29500", 1);
    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
        (void)setenv("RAVEL_PORT", ports[i], 1);
        ravel_error_clear(&err);
        CHECK_EQ(ravel__launch_find(&o, &launch, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, ports[i]);
        CHECK_HAS(err.message, "from 1 to 65535");
    }
    (void)unsetenv("RAVEL_PORT");
    ravel_error_clear(&err);
    o.ranks = 2; /* as the launcher has it: so is the rank */
    CHECK_OK(ravel__launch_find(&o, &launch, &err), &err);
    CHECK(launch.rank == 1 && launch.ranks == 2);
    o.ranks = 3; /* another world */
    CHECK_OK(ravel__launch_find(&o, &launch, &err), &err);
    CHECK(launch.rank == -1 && launch.ranks == 3);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    o.rendezvous = text;
    CHECK_EQ(ravel__launch_find(&o, &launch, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "1024 characters");
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    for (size_t i = 0; i < 4; i++) (void)unsetenv(names[i]);
    (void)setenv("RAVEL_TOKEN", text, 1);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__token_find(NULL, o.token_file, token, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "RAVEL_TOKEN has more than 1023 bytes");
    (void)unsetenv("RAVEL_TOKEN");
}

/* 80 connections that say nothing are there before the ranks: these meet as if they were not. */
TEST(comm_tcp_ranks_meet_beside_connections_that_say_nothing) {
    enum { SILENT = 80 };
    char place[32];
    ravel_error err = RAVEL_ERROR_INIT;
    int fds[SILENT], port = ports_free("127.0.0.1");
    (void)snprintf(place, sizeof place, "127.0.0.1:%d", port);
    ravel__address at;
    CHECK_OK(ravel__address_parse(place, strlen(place), &at, &err), &err);
    ravel_comm_options o = options_at(place, 60);
    silent_world w = {{o, 3}, &at, fds, SILENT, 0};
    int64_t began = ravel__clock_ns();
    CHECK_OK(comm_ranks_run(3, open_beside, &w, add_ranks, NULL, &err), &err);
    CHECK(w.connected == SILENT);
    CHECK((double)(ravel__clock_ns() - began) < 9.5e9); /* the handshake's own limit is 10 s */
    for (int i = 0; i < SILENT; i++) (void)close(fds[i]);
}

/* A rendezvous file replaces what an earlier world wrote, and nothing else; nobody can prepare the name it is written at. */
TEST(comm_tcp_rendezvous_files_replace_only_their_like) {
    char folder[] = "/tmp/ravel-meet-XXXXXX", file[64], place[80], text[32] = "";
    CHECK(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/notes.txt", folder);
    for (int unix_path = 0; unix_path < 2; unix_path++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL;
        (void)snprintf(place, sizeof place, "%s:%s", unix_path ? "unix" : "file", file);
        FILE *f = fopen(file, "w");
        CHECK(f && fputs("my notes", f) >= 0 && fclose(f) == 0);
        ravel_comm_options o = options_at(place, 0.3);
        o.ranks = 2;
        CHECK_EQ(ravel_comm_tcp(&o, &comm, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, file);
        f = fopen(file, "r");
        CHECK(f && fgets(text, sizeof text, f) && fclose(f) == 0);
        CHECK_STR(text, "my notes");
    }
    CHECK(unlink(file) == 0 && rmdir(folder) == 0);
}

/* ---- worlds side by side -------------------------------------------------------------------------------- */

/* Two TCP worlds and one of threads in every rank; one world dies, the others do not mind. */
typedef struct two_worlds {
    char second[64];
    ravel_comm *threads[3];
} two_worlds;

static ravel_status use_two(ravel_comm *comm, void *user, ravel_error *err) {
    two_worlds *t = user;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_comm_options o = options_at(t->second, 60);
    int32_t me = ravel_comm_rank(comm);
    ravel_comm *other = NULL, *third = t->threads[me];
    int64_t x = 1, sum = 0;
    o.ranks = 3, o.rank = 2 - me;
    ravel_status status = ravel_comm_tcp(&o, &other, err);
    if (!status) status = ravel_comm_barrier(other, err);
    if (!status) status = ravel_comm_barrier(third, err);
    if (!status && me == 1) ravel_comm_abort(other, &why);
    if (!status && me != 1 && ravel_comm_barrier(other, &why) != RAVEL_E_PEER_LOST)
        status = ravel_error_set(err, RAVEL_E_INTERNAL, "the second world lives: %s", why.message);
    ravel_comm_free(other);
    for (int i = 0; i < 20 && !status; i++) status = ravel_comm_allreduce(comm, &x, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
    if (!status) status = ravel_comm_barrier(third, err);
    ravel_comm_free(third);
    return status;
}

TEST(comm_worlds_live_side_by_side_and_die_alone) {
    char place[64];
    two_worlds t;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)fresh_place(t.second, sizeof t.second);
    CHECK_OK(ravel_comm_threads(3, NULL, t.threads, &err), &err);
    ravel_comm_options o = options_at(fresh_place(place, sizeof place), 60);
    CHECK_OK(run_ranks(3, &o, use_two, &t, &err), &err);
}

/* ---- what comes from others ----------------------------------------------------------------------------- */

TEST(comm_tcp_hellos_are_checked) {
    tcp_hello good = {TCP_MAGIC, TCP_VERSION, 1, 2, 0, 0, "x:1"}, h;
    tcp_table table = {TCP_MAGIC, 4, 1, 0, 9}, t;
    CHECK(ravel__tcp_read_hello(&good, sizeof good, &h));
    CHECK(!ravel__tcp_read_hello(&good, sizeof good - 1, &h));
    h = good, h.rank = 2;
    CHECK(!ravel__tcp_read_hello(&h, sizeof h, &h));
    h = good, h.ranks = 0;
    CHECK(!ravel__tcp_read_hello(&h, sizeof h, &h));
    h = good, memset(h.address, 'x', sizeof h.address);
    CHECK(!ravel__tcp_read_hello(&h, sizeof h, &h));
    CHECK(ravel__tcp_read_table(&table, sizeof table, 4, &t));
    CHECK(!ravel__tcp_read_table(&table, sizeof table, 5, &t));
    table.rank = 4;
    CHECK(!ravel__tcp_read_table(&table, sizeof table, 4, &t));
}

/* ---- one end of a world, by hand ------------------------------------------------------------------------ */

typedef struct other_end {
    ravel__hub *hub;
    ravel__link *links[2]; /* by the first byte of their hellos */
    int ups, downs;
    char why[700];
} other_end;

static int other_up(void *user, ravel__link *link, const void *hello, int32_t bytes) {
    other_end *o = user;
    if (bytes == 1) o->links[*(const char *)hello & 1] = link;
    o->ups++;
    return 1;
}
static void other_down(void *user, ravel__link *link, const char *why) {
    other_end *o = user;
    (void)link;
    o->downs++;
    (void)snprintf(o->why, sizeof o->why, "%s", why);
}

static ravel_status open_other(other_end *o, const char *listen, ravel_error *err) {
    ravel__hub_options options;
    const ravel__hub_handler handler = {.user = o, .up = other_up, .down = other_down};
    ravel__hub_options_default(&options);
    options.listen = listen;
    *o = (other_end){0};
    return ravel__hub_open(&options, &handler, &o->hub, err);
}

static ravel_status open_net(ravel__net *net, const char *listen, ravel_error *err) {
    ravel__hub_options options;
    const ravel__hub_handler handler = ravel__tcp_handler(net);
    ravel__hub_options_default(&options);
    options.listen = listen;
    return ravel__hub_open(&options, &handler, &net->hub, err);
}

#define POLL_BOTH(net, other, until)                                                                      \
    for (int64_t poll_end = ravel__clock_ns() + 60000000000; !(until) && ravel__clock_ns() < poll_end;) { \
        (void)ravel__hub_poll((net)->hub, 0.001, NULL, NULL);                                             \
        (void)ravel__hub_poll((other)->hub, 0.001, NULL, NULL);                                           \
    }

TEST(comm_tcp_more_ranks_without_numbers_than_there_are) {
    enum { RANKS = 2, COMERS = 6 };
    char place[64];
    ravel_error err = RAVEL_ERROR_INIT;
    tcp_peer peers[RANKS] = {{0}};
    tcp_hello hellos[RANKS], loose[RANKS];
    ravel__link *arrivals[2 * RANKS] = {NULL}, *link;
    ravel__net *net = calloc(1, sizeof *net);
    other_end other;
    net->state = TCP_MEETS, net->ranks = RANKS, net->met = 1, net->peers = peers, net->hellos = hellos;
    net->arrivals = arrivals, net->loose = arrivals + RANKS, net->loose_hellos = loose;
    CHECK_OK(open_net(net, fresh_place(place, sizeof place), &err), &err);
    CHECK_OK(open_other(&other, NULL, &err), &err);
    const tcp_hello hello = {TCP_MAGIC, TCP_VERSION, -1, RANKS, 0, 0, "x:1"};
    for (int i = 0; i < COMERS; i++)
        CHECK_OK(ravel__hub_connect(other.hub, place, &hello, sizeof hello, 60, NULL, &link, &err), &err);
    POLL_BOTH(net, &other, other.downs == COMERS - 1);
    CHECK_EQ(net->loose_count, 1);
    CHECK_EQ(net->met, RANKS);
    CHECK_EQ(other.downs, COMERS - 1);
    CHECK_HAS(other.why, "all 2 ranks are here already");
    ravel__hub_free(other.hub);
    ravel__hub_free(net->hub);
    free(net);
}

/* Ranks of another world, and one that names none, connect before the table is here: one stays, having sent a frame, one
 * has left again, one takes itself for rank 0. When the table comes, nothing of them is left. */
TEST(comm_tcp_peers_of_another_world_leave_nothing) {
    enum { RANKS = 5, ME = 1, OTHERS = 3 };
    static const int32_t who[OTHERS] = {0, 2, 3};
    static const uint64_t worlds[OTHERS] = {77, 77, 0};
    char place[64], frame[100] = "of another world";
    ravel_error err = RAVEL_ERROR_INIT;
    tcp_peer peers[RANKS] = {{0}};
    tcp_hello hellos[RANKS];
    ravel__link *links[OTHERS], *gone;
    ravel__net *net = calloc(1, sizeof *net);
    other_end other;
    net->state = TCP_MEETS, net->rank = ME, net->ranks = RANKS, net->peers = peers, net->hellos = hellos;
    for (int32_t r = 0; r < RANKS; r++) {
        peers[r].net = net, peers[r].rank = r;
        hellos[r] = (tcp_hello){TCP_MAGIC, TCP_VERSION, r, RANKS, 0, 0, "x:1"};
    }
    CHECK_OK(open_net(net, fresh_place(place, sizeof place), &err), &err);
    CHECK_OK(open_other(&other, NULL, &err), &err);
    for (int i = 0; i < OTHERS; i++) {
        tcp_hello hello = {TCP_MAGIC, TCP_VERSION, who[i], RANKS, worlds[i], 0, "x:1"};
        CHECK_OK(ravel__hub_connect(other.hub, place, &hello, sizeof hello, 60, NULL, &links[i], &err), &err);
    }
    const tcp_hello leaver = {TCP_MAGIC, TCP_VERSION, 4, RANKS, 77, 0, "x:1"};
    CHECK_OK(ravel__hub_connect(other.hub, place, &leaver, sizeof leaver, 60, NULL, &gone, &err), &err);
    POLL_BOTH(net, &other, other.ups == OTHERS + 1 && peers[4].links[1]);
    ravel__link_close(gone, "left");
    const ravel__message head = {TCP_FRAME, 0, sizeof frame};
    for (int i = 0; i < OTHERS; i++) CHECK_OK(ravel__link_send(links[i], &head, frame, NULL, &err), &err);
    POLL_BOTH(net, &other, peers[0].frames[1] && peers[2].frames[1] && peers[3].frames[1] && peers[4].lost);
    CHECK(net->early && peers[4].lost);
    other_end root;
    char root_place[64];
    CHECK_OK(open_other(&root, fresh_place(root_place, sizeof root_place), &err), &err);
    CHECK_OK(ravel__hub_connect(net->hub, root_place, "0", 1, 60, NULL, &net->root, &err), &err);
    POLL_BOTH(net, &root, root.ups == 1 && net->root->state == LINK_UP);
    const tcp_table table = {TCP_MAGIC, RANKS, ME, 0, 55};
    ravel__tcp_meet_message(net, TCP_TABLE, &table, sizeof table);
    ravel__tcp_meet_message(net, TCP_HELLOS, hellos, sizeof hellos);
    CHECK_EQ(net->met, RANKS);
    CHECK(!net->early);
    CHECK(peers[0].out == net->root && peers[0].links[0] == net->root && peers[0].out_is_up);
    for (int32_t r = 0; r < RANKS; r++)
        CHECK(!peers[r].lost && !peers[r].links[1] && !peers[r].frames[0] && !peers[r].frames[1]);
    POLL_BOTH(net, &other, other.downs == OTHERS);
    CHECK_HAS(other.why, "another world");
    ravel__hub_free(root.hub);
    ravel__hub_free(other.hub);
    ravel__hub_free(net->hub);
    free(net);
}

static void no_frame(void *user, int32_t peer, const void *data, int32_t bytes) {
    (void)user, (void)peer, (void)data, (void)bytes;
}
static void no_loss(void *user, int32_t peer, const char *why) {
    (void)user, (void)peer, (void)why;
}

/* Of two links the one that a transfer goes over is lost; what the other holds is still read, and meanwhile the transfer
 * is given up. */
TEST(comm_tcp_a_transfer_is_given_up_after_its_link) {
    char place[64];
    ravel_error err = RAVEL_ERROR_INIT;
    tcp_peer peers[2] = {{0}};
    ravel__net *net = calloc(1, sizeof *net);
    other_end other;
    int64_t bytes = 32 << 20;
    char *data = calloc(1, (size_t)bytes);
    ravel__transfer t = {.peer = 1, .token = 5, .data = data, .bytes = bytes};
    net->state = TCP_RUNS, net->ranks = 2, net->peers = peers, net->ready = 1;
    net->events = (ravel__wire_events){NULL, no_frame, no_loss};
    for (int i = 0; i < 2; i++) peers[i].net = net, peers[i].rank = i;
    CHECK_OK(open_other(&other, fresh_place(place, sizeof place), &err), &err);
    CHECK_OK(open_net(net, NULL, &err), &err);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ravel__hub_connect(net->hub, place, i ? "1" : "0", 1, 60, &peers[1], &peers[1].links[i], &err), &err);
    POLL_BOTH(net, &other,
              other.ups == 2 && peers[1].links[0]->state == LINK_UP && peers[1].links[1]->state == LINK_UP);
    int out = peers[1].out == peers[1].links[1];
    CHECK_EQ(ravel__tcp_wire.send(net, &t), 0);
    ravel__link_close(other.links[out], "gone");
    POLL_BOTH(net, &other, !peers[1].links[out]);
    CHECK(!peers[1].links[out] && peers[1].links[!out]);
    CHECK_EQ(ravel__tcp_wire.cancel(net, &t), 1);
    CHECK_EQ(t.state, RAVEL__TRANSFER_IDLE);
    ravel__hub_free(net->hub);
    ravel__hub_free(other.hub);
    free(data);
    free(net);
}
