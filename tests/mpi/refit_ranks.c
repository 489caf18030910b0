/* Refit under mpirun, with ranks that die. One process is one rank.
 *
 *     mpirun -n 4 refit-ranks clean                      versions 1 to 3, with two senders
 *     mpirun -n 4 refit-ranks KIND RANK step N           version 1, then version 2, in which RANK is killed (kill),
 *     mpirun -n 4 refit-ranks KIND RANK message N        gives up (leave) or is late (late) at that place
 *
 * Every rank that is left looks at what it holds and says "whole VERSION rank R", or "FAIL ...": to standard output, and
 * to a file of its own in the folder that REFIT_RANKS_LOG names, since a launcher may lose what survivors print. The
 * suite sees to it that they are on one version, all of them, and that a clean run works again. */
#include "tests/unit/refit_case.h"

#include "refit/session/session.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

typedef struct fault {
    const char *kind;
    int32_t rank;
    int32_t step;    /* -1: a message */
    int64_t message; /* number of it */
    int64_t sent;
    int32_t armed, me;
} fault;

static fault the_fault = {.step = -1, .message = -1};

/* Seconds. Only where a deadline must pass, in version 2, it is short: version 1 must be in time on a loaded machine, too. */
enum { SHORT_DEADLINE = 8, LONG_DEADLINE = 60 };

static int passes_deadline(void) {
    return the_fault.kind && (strcmp(the_fault.kind, "late") == 0 || strcmp(the_fault.kind, "drop") == 0);
}

static ravel_status strike(ravel_error *err) {
    if (strcmp(the_fault.kind, "kill") == 0) (void)raise(SIGKILL);
    if (strcmp(the_fault.kind, "late") == 0) {
        struct timespec t = {(time_t)SHORT_DEADLINE + 2, 0};
        (void)nanosleep(&t, NULL);
        return RAVEL_OK;
    }
    return ravel_error_set(err, RAVEL_E_DEAD, "gives up, as the test says");
}

static ravel_status faulty_step(void *user, ravel_comm *comm, int32_t step, ravel_error *err) {
    (void)user;
    (void)comm;
    if (the_fault.armed && the_fault.me == the_fault.rank && the_fault.step == step) return strike(err);
    return RAVEL_OK;
}

static ravel_status faulty_isend(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer,
                                 int32_t tag, ravel_request **request, ravel_error *err) {
    (void)user;
    int64_t number = the_fault.sent++;
    if (the_fault.armed && the_fault.me == the_fault.rank && the_fault.step < 0 && the_fault.message == number) {
        static unsigned char copy[1 << 16]; /* it must stay until the message has gone */
        if (strcmp(the_fault.kind, "drop") == 0) {
            *request = NULL;
            return RAVEL_OK;
        }
        if (strcmp(the_fault.kind, "short") == 0) {
            bytes -= 9;
        } else if (strcmp(the_fault.kind, "change") == 0 && bytes <= (int64_t)sizeof copy) {
            memcpy(copy, data, (size_t)bytes);
            copy[bytes / 2] ^= 1;
            data = copy;
        } else {
            ravel_status status = strike(err);
            if (status != RAVEL_OK) return status;
        }
    }
    return ravel_comm_isend(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

/* Two senders that halve everything, the rest receivers that hold it whole; some tensors larger than a buffer. */
static void make_case(refit_case *c, int32_t ranks) {
    memset(c, 0, sizeof *c);
    c->senders = 2;
    c->receivers = ranks - 2;
    c->tp[0] = 2;
    c->tp[1] = 1;
    c->count = 8;
    for (int32_t i = 0; i < c->count; i++) {
        c->tensors[i] = (case_tensor){.ndim = 2, .dims = {i == 3 ? 700 : 8, 16}, .dim = {0, -1}};
        c->tensors[i].dtype[0] = c->tensors[i].dtype[1] = i % 2 ? RAVEL_BF16 : RAVEL_F32;
        (void)snprintf(c->tensors[i].name, sizeof c->tensors[i].name, "w%d", i);
    }
    ravel_refit_options_default(&c->options);
    c->options.buffer_bytes = 4096;
    c->options.audit = 1;
    c->options.timeout = LONG_DEADLINE;
}

void check_fail(const char *file, int line, const char *format, ...) {
    printf("FAIL %s:%d: %s\n", file, line, format);
}

static void say(int32_t rank, const char *format, ...) RAVEL_PRINTF(2, 3);
static void say(int32_t rank, const char *format, ...) {
    const char *folder = getenv("REFIT_RANKS_LOG");
    char text[1200], path[1200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)printf("%s\n", text);
    if (!folder) return;
    (void)snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
    FILE *f = fopen(path, "a");
    if (f) (void)fprintf(f, "%s\n", text), (void)fclose(f);
}

static int look(const refit_case *c, const case_side *to, const ravel_refit *refit, int32_t rank) {
    int64_t version = ravel_refit_version(refit), wrong = case_wrong_live(c, to, refit, version);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_refit_audit(refit, &err);
    if (wrong > 0 || status != RAVEL_OK || version < 1)
        say(rank, "FAIL rank %d: version %lld has %lld wrong elements, %s", rank, (long long)version, (long long)wrong,
            err.message);
    else
        say(rank, "whole %lld rank %d", (long long)version, rank);
    return wrong > 0 || status != RAVEL_OK;
}

static void arm(const ravel_refit *refit, int on) {
    the_fault.armed = on;
    the_fault.sent = 0;
    if (!on || !passes_deadline()) return;
    ravel_comm_set_timeout(refit->comm, SHORT_DEADLINE);
    if (refit->data) ravel_comm_set_timeout(refit->data, SHORT_DEADLINE);
}

static int run(ravel_comm *comm, int64_t versions) {
    static case_side from, to;
    static refit_case c;
    int32_t rank = the_fault.me = ravel_comm_rank(comm);
    ravel__transport transport = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit *refit = NULL;
    transport.step = faulty_step;
    transport.isend = faulty_isend;
    make_case(&c, ravel_comm_size(comm));
    int sends = case_side_rank(&c, 0, rank) >= 0;
    if (!case_side_make(&c, !sends, rank, 0, sends ? &from : &to)) return 1;
    ravel_refit_source source = {.size = sizeof source, .tensors = from.tensors, .count = from.count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to.tensors, .count = to.count};
    ravel_status status = ravel__refit_create_over(comm, sends ? &source : NULL, sends ? NULL : &sink, &c.options,
                                                   &transport, &refit, &err);
    for (int64_t v = 1; v <= versions && status == RAVEL_OK; v++) {
        arm(refit, v == 2 && the_fault.kind);
        if (sends) case_fill(&c, &from, v);
        status = ravel_refit_update(refit, v, NULL, &err);
    }
    if (status != RAVEL_OK)
        say(rank, "%srank %d: %s: %s", the_fault.kind ? "" : "FAIL ", rank, ravel_status_name(status), err.message);
    int bad = refit && !sends ? look(&c, &to, refit, rank) : 0;
    ravel_refit_free(refit);
    case_side_free(&from);
    case_side_free(&to);
    return bad || (status != RAVEL_OK && !the_fault.kind);
}

int main(int argc, char **argv) {
    ravel_comm *comm = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options o;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 5) {
        the_fault.kind = argv[1];
        the_fault.rank = atoi(argv[2]);
        if (strcmp(argv[3], "step") == 0)
            the_fault.step = atoi(argv[4]);
        else
            the_fault.message = atoi(argv[4]);
    } else if (argc != 2 || strcmp(argv[1], "clean") != 0) {
        (void)fprintf(
            stderr,
            "usage: mpirun -n RANKS refit-ranks clean | kill|leave|late RANK step|message N | drop|short|change RANK message N\n");
        return 2;
    }
    ravel_comm_options_default(&o);
    o.timeout = LONG_DEADLINE;
    if (ravel_comm_open("auto", &o, &comm, &err) != RAVEL_OK) {
        printf("FAIL open: %s\n", err.message);
        return 1;
    }
    int bad = run(comm, the_fault.kind ? 2 : 3);
    ravel_comm_free(comm);
    return bad;
}
