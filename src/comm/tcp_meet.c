/* How the ranks of a TCP world find one another.
 *
 *     rank 0            listens at the rendezvous; takes a hello from every other rank; numbers those that have no rank;
 *                       gives the world a number; sends all hellos to every rank
 *     the others        listen at their own address; connect to the rendezvous, with retries until the deadline
 *
 * A rendezvous is host:port, unix:/path, or file:/path: a file in which rank 0 writes the address that the system gave
 * it. A stale file is harmless: a rank that finds no listener at its address reads the file again. */
#include "comm/tcp.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "comm/link/address.h"
#include "comm/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RETRY_NS = 100000000 };

/* ---- what comes from others ----------------------------------------------------------------------------- */

int ravel__tcp_read_hello(const void *bytes, int64_t count, tcp_hello *hello) {
    if (count != (int64_t)sizeof *hello) return 0;
    memcpy(hello, bytes, sizeof *hello);
    return hello->magic == TCP_MAGIC && hello->version == TCP_VERSION && hello->ranks > 0 && hello->rank >= -1 &&
           hello->rank < hello->ranks && memchr(hello->address, '\0', sizeof hello->address) != NULL;
}

int ravel__tcp_read_table(const void *bytes, int64_t count, int32_t ranks, tcp_table *table) {
    if (count != (int64_t)sizeof *table) return 0;
    memcpy(table, bytes, sizeof *table);
    return table->magic == TCP_MAGIC && table->ranks == ranks && table->rank > 0 && table->rank < ranks && table->world;
}

/* ---- rank 0 --------------------------------------------------------------------------------------------- */

static void refuse(ravel__link *link, const char *why) {
    ravel__link_close(link, why);
}

static int take_arrival(ravel__net *net, ravel__link *link, const tcp_hello *hello) {
    char why[160];
    int32_t r = hello->rank;
    RAVEL_ASSERT(net->rank == 0 && net->state == TCP_MEETS && r >= -1);
    if (hello->ranks != net->ranks) {
        (void)snprintf(why, sizeof why, "it counts %d ranks, and rank 0 counts %d", hello->ranks, net->ranks);
        refuse(link, why);
        return 1;
    }
    if (r == 0 || (r > 0 && net->arrivals[r])) {
        (void)snprintf(why, sizeof why, "there is a rank %d already", r);
        refuse(link, why);
        return 1;
    }
    if (net->met == net->ranks) { /* of ranks without numbers any number may come */
        (void)snprintf(why, sizeof why, "all %d ranks are here already", net->ranks);
        refuse(link, why);
        return 1;
    }
    if (r > 0) {
        net->arrivals[r] = link;
        net->hellos[r] = *hello;
    } else { /* numbered when all are here */
        RAVEL_ASSERT(net->loose_count < net->ranks);
        net->loose[net->loose_count] = link;
        net->loose_hellos[net->loose_count++] = *hello;
    }
    net->met++;
    RAVEL_ASSERT(net->met <= net->ranks);
    return 1;
}

static void number_loose(ravel__net *net) {
    for (int32_t r = 1; r < net->ranks; r++) {
        if (net->arrivals[r]) continue;
        RAVEL_ASSERT(net->loose_count > 0);
        net->arrivals[r] = net->loose[--net->loose_count];
        net->hellos[r] = net->loose_hellos[net->loose_count];
        net->hellos[r].rank = r;
    }
}

static void tell_all(ravel__net *net) {
    if (getrandom(&net->world, sizeof net->world, 0) != (ssize_t)sizeof net->world)
        net->world = (uint64_t)ravel__clock_ns();
    net->world |= 1;
    number_loose(net);
    RAVEL_ASSERT(net->loose_count == 0 && net->met == net->ranks);
    for (int32_t r = 1; r < net->ranks; r++) {
        tcp_table table = {TCP_MAGIC, net->ranks, r, 0, net->world};
        ravel__message head = {TCP_TABLE, 0, sizeof table};
        ravel__message hellos = {TCP_HELLOS, 0, net->ranks * (int64_t)sizeof *net->hellos};
        ravel__link *link = net->arrivals[r];
        (void)ravel__link_send(link, &head, &table, NULL, NULL);
        (void)ravel__link_send(link, &hellos, net->hellos, net, NULL); /* they stay as long as the net */
        ravel__tcp_adopt(net, link, r, 0);
    }
}

/* ---- the others ----------------------------------------------------------------------------------------- */

void ravel__tcp_meet_message(ravel__net *net, uint32_t kind, const void *body, int64_t bytes) {
    RAVEL_ASSERT(kind == TCP_TABLE || kind == TCP_HELLOS);
    tcp_table table;
    tcp_hello one;
    if (kind == TCP_TABLE) {
        if (!ravel__tcp_read_table(body, bytes, net->ranks, &table)) return;
        net->rank = table.rank;
        net->world = table.world;
        return;
    }
    const tcp_hello *hellos = body;
    RAVEL_ASSERT(bytes == net->ranks * (int64_t)sizeof one);
    for (int32_t r = 0; r < net->ranks; r++)
        if (!ravel__tcp_read_hello(&hellos[r], sizeof one, &one) || one.rank != r || one.ranks != net->ranks) return;
    if (!net->world) return;
    if (hellos != net->hellos) memcpy(net->hellos, hellos, (size_t)bytes);
    net->met = net->ranks;
    for (int32_t r = 0; r < net->ranks; r++) /* peers that connected before this rank had the table */
        if (net->peers[r].claim != net->world) ravel__tcp_forget(net, r, "another world");
    ravel__tcp_adopt(net, net->root, 0, 1);
}

int ravel__tcp_meet_up(ravel__net *net, ravel__link *link, const void *hello, int32_t bytes) {
    tcp_hello read;
    if (net->rank != 0) return 1; /* connected to rank 0: the table comes */
    return ravel__tcp_read_hello(hello, bytes, &read) && take_arrival(net, link, &read);
}

void ravel__tcp_meet_down(ravel__net *net, ravel__link *link, const char *why) {
    RAVEL_ASSERT(net->state == TCP_MEETS && net->met >= 0 && net->loose_count >= 0);
    (void)snprintf(net->why, sizeof net->why, "%.400s", why);
    if (link == net->root) net->root = NULL;
    /* Only for "refused": a world that is closing may still hold the address. */
    net->refused |= net->rank != 0 && strstr(why, "closed the link: ") && !strstr(why, "closed the link: refused");
    for (int32_t r = 1; r < net->ranks && net->rank == 0; r++)
        if (net->arrivals[r] == link) net->arrivals[r] = NULL, net->met--;
    for (int32_t i = 0; i < net->loose_count; i++) {
        if (net->loose[i] != link) continue;
        net->loose[i] = net->loose[--net->loose_count];
        net->loose_hellos[i] = net->loose_hellos[net->loose_count];
        net->met--;
    }
}

/* ---- where to listen ------------------------------------------------------------------------------------ */

/* The address of this machine that leads to `to`, with port 0: what a datagram would be sent from. */
static int local_address(const ravel__address *to, ravel__address *from) {
    int fd = socket(to->at.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    from->bytes = sizeof from->at;
    int ok = fd >= 0 && connect(fd, (const struct sockaddr *)&to->at, to->bytes) == 0 &&
             getsockname(fd, (struct sockaddr *)&from->at, &from->bytes) == 0;
    if (fd >= 0) (void)close(fd);
    if (ok) ravel__address_set_port(from, 0);
    return ok;
}

static int is_file(const char *rendezvous) {
    return strncmp(rendezvous, "file:", 5) == 0;
}

/* Beside host:port, rank 0 listens at a Unix socket of that name, which ranks of its machine try first; they keep the
 * link that they met on (tcp.c). Ranks of other machines connect to host:port. */
#define BESIDE "unix:@ravel-at-"
static int meets_beside(const char *rendezvous) {
    return !is_file(rendezvous) && strncmp(rendezvous, "unix:", 5) != 0 && strlen(rendezvous) < 80;
}

/* Comma-separated: a Unix socket for this machine first, then an address for the others. */
static int choose_listen(ravel__net *net, const ravel_comm_options *o, const char *rendezvous, char *list,
                         size_t bytes) {
    static int count;
    char text[RAVEL__ADDRESS_TEXT] = "127.0.0.1:0";
    ravel__address at, from;
    ravel_error err = RAVEL_ERROR_INIT;
    int mine = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    if (o->listen && *o->listen) {
        (void)snprintf(text, sizeof text, "%.150s", o->listen);
    } else if (net->rank == 0 && !is_file(rendezvous)) {
        (void)snprintf(text, sizeof text, "%.150s", rendezvous);
    } else if (!is_file(rendezvous)) {
        if (ravel__address_parse(rendezvous, strlen(rendezvous), &at, &err)) {
            (void)snprintf(net->why, sizeof net->why, "%.470s", err.message);
            return RAVEL__WIRE_ARGUMENT;
        }
        if (at.at.ss_family != AF_UNIX && local_address(&at, &from)) (void)ravel__address_format(&from, text);
    }
    if (o->listen && *o->listen) { /* listen only there */
        (void)snprintf(list, bytes, "%s", text);
        return 0;
    }
    if (net->rank == 0 && meets_beside(rendezvous)) {
        (void)snprintf(list, bytes, BESIDE "%s,%s", rendezvous, text);
        return 0;
    }
    (void)snprintf(list, bytes, "unix:@ravel-%lld-%d-%llx,%s", (long long)getpid(), mine,
                   (unsigned long long)ravel__clock_ns() & 0xffffff, text);
    return 0;
}

static int open_hub(ravel__net *net, const ravel_comm_options *o, const char *rendezvous, const char *token) {
    ravel__hub_options h;
    ravel__hub_handler handler = ravel__tcp_handler(net);
    ravel_error err = RAVEL_ERROR_INIT;
    char list[2 * RAVEL__ADDRESS_TEXT];
    int64_t hellos = net->ranks * (int64_t)sizeof *net->hellos;
    int code = choose_listen(net, o, rendezvous, list, sizeof list);
    if (code) return code;
    ravel__hub_options_default(&h);
    h.listen = list, h.token = token, h.allow = o->allow;
    h.max_links = 2 * net->ranks + 64;
    h.max_strangers = net->ranks > h.max_strangers ? net->ranks : h.max_strangers; /* all may come at once */
    h.shared = o->shared;
    h.tls = o->tls;
    h.max_body = hellos > TCP_PIECE ? hellos : TCP_PIECE;
    ravel_status status = ravel__hub_open(&h, &handler, &net->hub, &err);
    (void)snprintf(net->why, sizeof net->why, "%.470s", err.message);
    return status == RAVEL_OK ? 0 : status == RAVEL_E_MEMORY ? RAVEL__WIRE_MEMORY : RAVEL__WIRE_ARGUMENT;
}

static int make_hello(ravel__net *net) {
    tcp_hello h = {.magic = TCP_MAGIC, .version = TCP_VERSION, .rank = net->rank, .ranks = net->ranks};
    const char *address = ravel__hub_address(net->hub);
    h.machine = net->machine;
    if (strlen(address) >= sizeof h.address) {
        (void)snprintf(net->why, sizeof net->why, "the addresses \"%.200s\" are too long", address);
        return RAVEL__WIRE_ARGUMENT;
    }
    (void)snprintf(h.address, sizeof h.address, "%s", address);
    net->hellos[net->rank < 0 ? 0 : net->rank] = h;
    return 0;
}

/* ---- a file ---------------------------------------------------------------------------------------------- */

static int read_file(const char *path, char *address, size_t bytes) {
    FILE *f = fopen(path, "re");
    size_t got = f ? fread(address, 1, bytes - 1, f) : 0;
    if (f) (void)fclose(f);
    address[got] = '\0';
    address[strcspn(address, "\n")] = '\0';
    return address[0] != '\0';
}

/* Whether a file of that name may be replaced: it is empty, or it holds what rank 0 of an earlier world wrote. */
static int may_replace(const char *path) {
    char text[2 * TCP_ADDRESS_MOST];
    struct stat st;
    if (lstat(path, &st) != 0) return 1;
    if (!S_ISREG(st.st_mode) || st.st_size >= (off_t)sizeof text) return 0;
    if (st.st_size == 0 || !read_file(path, text, sizeof text)) return st.st_size == 0;
    return strncmp(text, "unix:", 5) == 0 || text[0] == '[' || (text[0] >= '0' && text[0] <= '9' && strchr(text, ':'));
}

static int cannot_write(ravel__net *net, const char *path, const char *why) {
    (void)snprintf(net->why, sizeof net->why, "the rendezvous file \"%.200s\" cannot be written: %s", path, why);
    return RAVEL__WIRE_ARGUMENT;
}

/* Written under a name that nobody can have prepared and renamed, so that readers see a complete file. */
static int write_file(ravel__net *net, const char *path) {
    char other[RAVEL__LAUNCH_TEXT + 64];
    uint64_t number = 0;
    if (!may_replace(path))
        return cannot_write(net, path, "it exists, and is not a rendezvous file; choose another path");
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) number = (uint64_t)ravel__clock_ns();
    (void)snprintf(other, sizeof other, "%s.%016llx", path, (unsigned long long)number);
    int fd = open(other, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return cannot_write(net, path, strerror(errno));
    int ok = dprintf(fd, "%s\n", ravel__hub_address(net->hub)) > 0;
    ok = close(fd) == 0 && ok;
    if (ok && rename(other, path) == 0) {
        (void)snprintf(net->file, sizeof net->file, "%s", path);
        return 0;
    }
    (void)cannot_write(net, path, strerror(errno));
    (void)unlink(other);
    return RAVEL__WIRE_ARGUMENT;
}

/* ---- the meeting ---------------------------------------------------------------------------------------- */

/* (Re)connects to rank 0, if that is needed. */
static void look_for_root(ravel__net *net, const char *rendezvous, int64_t deadline_ns, int64_t *again_ns) {
    RAVEL_ASSERT(net->rank != 0);
    char address[2 * TCP_ADDRESS_MOST];
    int64_t now = ravel__clock_ns();
    ravel_error err = RAVEL_ERROR_INIT;
    if (net->root || now < *again_ns) return;
    *again_ns = now + RETRY_NS;
    if (meets_beside(rendezvous))
        (void)snprintf(address, sizeof address, BESIDE "%s,%s", rendezvous, rendezvous);
    else
        (void)snprintf(address, sizeof address, "%s", rendezvous);
    if (is_file(rendezvous) && !read_file(rendezvous + 5, address, sizeof address)) {
        (void)snprintf(net->why, sizeof net->why, "there is no file \"%.200s\" yet", rendezvous + 5);
        return;
    }
    double left = (double)(deadline_ns - now) / 1e9, patience = is_file(rendezvous) ? 0.5 : left;
    tcp_hello *mine = &net->hellos[net->rank < 0 ? 0 : net->rank];
    if (ravel__hub_connect(net->hub, address, mine, sizeof *mine, patience < left ? patience : left, NULL, &net->root,
                           &err))
        (void)snprintf(net->why, sizeof net->why, "%.470s", err.message);
}

/* Rank 0: who did not come. Those that came without a number may be any of them. */
static void name_missing(ravel__net *net, int used) {
    enum { SHOWN = 8 };
    int32_t count = net->ranks - net->met, shown = 0;
    size_t room = sizeof net->why;
    if (net->loose_count) {
        (void)snprintf(net->why + used, room - (size_t)used, "; missing are %d of %d", count, net->ranks);
        return;
    }
    used += snprintf(net->why + used, room - (size_t)used, "; missing %s", count == 1 ? "is rank" : "are ranks");
    for (int32_t r = 1; r < net->ranks && shown < SHOWN; r++)
        if (!net->arrivals[r]) used += snprintf(net->why + used, room - (size_t)used, "%s %d", shown++ ? "," : "", r);
    if (count > SHOWN) (void)snprintf(net->why + used, room - (size_t)used, " and %d more", count - SHOWN);
}

static int missing(ravel__net *net) {
    char last[sizeof net->why];
    memcpy(last, net->why, sizeof last);
    int used =
        snprintf(net->why, sizeof net->why, "not all ranks came to the first meeting within %.3g s", net->timeout);
    if (net->rank == 0) {
        name_missing(net, used);
        return RAVEL__WIRE_TIMEOUT;
    }
    if (last[0])
        (void)snprintf(net->why + used, sizeof net->why - (size_t)used, "; the last trouble was: %.350s", last);
    return RAVEL__WIRE_TIMEOUT;
}

int ravel__tcp_meet(ravel__net *net, const ravel_comm_options *o, const ravel__launch *launch, const char *token,
                    int64_t deadline_ns) {
    const char *rendezvous = launch->rendezvous;
    int64_t again_ns = 0;
    int code = open_hub(net, o, rendezvous, token);
    if (!code) code = make_hello(net);
    if (!code && net->rank == 0 && is_file(rendezvous)) code = write_file(net, rendezvous + 5);
    if (code) return code;
    net->why[0] = '\0';
    if (net->rank == 0) net->met = 1;
    while (net->met < net->ranks) {
        if (ravel__clock_ns() > deadline_ns) return missing(net);
        if (net->refused) return RAVEL__WIRE_ARGUMENT;
        if (net->rank != 0) look_for_root(net, rendezvous, deadline_ns, &again_ns);
        (void)ravel__hub_poll(net->hub, 0.05, NULL, NULL);
    }
    if (net->rank == 0) tell_all(net);
    return 0;
}
