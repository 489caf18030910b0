/* Listening, connecting, and the handshake, in which both ends prove that they know the token. */
#include "comm/link/link_state.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/system/file.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECOND_NS = 1000000000, PAUSE_LEAST_NS = 5000000, PAUSE_MOST_NS = 200000000 };
enum { ACCEPTS = 16 }; /* per turn: links that were accepted before are served in between */

/* ---- listening ------------------------------------------------------------------------------------------ */

static ravel_status listen_failed(const ravel__address *at, const char *what, ravel_error *err) {
    char text[RAVEL__ADDRESS_TEXT];
    int code = errno;
    return ravel_error_set(err, RAVEL_E_IO, "cannot %s %s: %s", what, ravel__address_format(at, text), strerror(code));
}

/* The path of a Unix socket; NULL: it has none. */
static const char *path_of(const ravel__address *at) {
    const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)&at->at;
    return at->at.ss_family == AF_UNIX && un->sun_path[0] ? un->sun_path : NULL;
}

/* Removes a Unix socket without a listener. Anything else at its path is an error. */
static ravel_status remove_stale(const ravel__address *at, ravel_error *err) {
    const char *path = path_of(at);
    struct stat st;
    if (!path || lstat(path, &st) != 0) return RAVEL_OK;
    if (!S_ISSOCK(st.st_mode))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "cannot listen at unix:%s: there is a file or folder of that name, which is not a socket; "
            "choose another path",
            path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) return RAVEL_OK;
    if (connect(probe, (const struct sockaddr *)&at->at, at->bytes) < 0 && errno == ECONNREFUSED) (void)unlink(path);
    (void)close(probe);
    return RAVEL_OK;
}

static void note_file(link_listener *l) {
    struct stat st;
    const char *path = path_of(&l->at);
    if (path && lstat(path, &st) == 0) l->device = st.st_dev, l->inode = st.st_ino;
}

void ravel__listener_remove(const link_listener *l) {
    struct stat st;
    const char *path = path_of(&l->at);
    if (path && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_dev == l->device && st.st_ino == l->inode)
        (void)unlink(path);
}

static ravel_status listen_at(ravel__hub *hub, ravel__address *at, ravel_error *err) {
    RAVEL_ASSERT(hub->listener_count >= 0 && hub->listener_count < LINK_LISTENERS);
    int one = 1, fd = socket(at->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return listen_failed(at, "make a socket for", err);
    link_listener *l = &hub->listeners[hub->listener_count];
    *l = (link_listener){.source = SOURCE_LISTENER, .fd = fd, .at = *at};
    if (at->at.ss_family != AF_UNIX) (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    ravel_status stale = remove_stale(at, err);
    if (stale) {
        (void)close(fd);
        return stale;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    l->at.bytes = sizeof l->at.at;
    if (bind(fd, (struct sockaddr *)&at->at, at->bytes) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)&l->at.at, &l->at.bytes) < 0 ||
        epoll_ctl(hub->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        ravel_status status = listen_failed(at, "listen at", err);
        (void)close(fd);
        return status;
    }
    note_file(l);
    hub->listener_count++;
    return RAVEL_OK;
}

/* Whether links at this address use the token of this user's cache folder. */
static int uses_user_token(const ravel__hub *hub, const ravel__address *at) {
    return !*hub->token && !hub->options.open && at->at.ss_family != AF_UNIX && ravel__address_is_local(at);
}

static ravel_status find_user_token(ravel__hub *hub, ravel_error *err) {
    char token[RAVEL__TOKEN_MOST];
    if (hub->user_token) return RAVEL_OK;
    ravel_status status = ravel__token_user(token, err);
    if (status) return status;
    hub->user_token = ravel__link_copy_text(hub->options.allocator, token);
    return hub->user_token ? RAVEL_OK : ravel__no_memory(err, RAVEL__TOKEN_MOST, "a token");
}

static void choose_token(ravel__link *link, const ravel__address *at) {
    link->token_kind = *link->hub->token ? RAVEL__TOKEN_GIVEN : RAVEL__TOKEN_NONE;
    if (uses_user_token(link->hub, at) && link->hub->user_token) link->token_kind = RAVEL__TOKEN_USER;
}

static ravel_status check_public(const ravel__hub *hub, const ravel__address *at, ravel_error *err) {
    char text[RAVEL__ADDRESS_TEXT];
    if (ravel__address_is_local(at) || hub->options.open || (hub->token && *hub->token)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "listening at %s, which other machines can reach, needs a shared token; give one, or say "
                           "that every peer may connect",
                           ravel__address_format(at, text));
}

ravel_status ravel__hub_listen(ravel__hub *hub, const char *list, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (const char *word = list; *word && !status;) {
        ravel__address at;
        size_t length = strcspn(word, ",");
        if (hub->listener_count == LINK_LISTENERS)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "at most %d addresses to listen at", LINK_LISTENERS);
        status = ravel__address_parse(word, length, &at, err);
        if (!status) status = check_public(hub, &at, err);
        if (!status && uses_user_token(hub, &at)) status = find_user_token(hub, err);
        if (!status) status = listen_at(hub, &at, err);
        word += length + (word[length] == ',');
    }
    for (int32_t i = 0; i < hub->listener_count && !status; i++) {
        char text[RAVEL__ADDRESS_TEXT];
        size_t used = strlen(hub->address);
        (void)snprintf(hub->address + used, sizeof hub->address - used, "%s%s", used ? "," : "",
                       ravel__address_format(&hub->listeners[i].at, text));
    }
    return status;
}

/* ---- a connected socket --------------------------------------------------------------------------------- */

static void set_options(ravel__link *link) {
    RAVEL_ASSERT(link->fd >= 0);
    int one = 1, idle = (int)(link->hub->options.keepalive / 2), each = idle / 3;
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof at;
    link->is_tcp = getsockname(link->fd, (struct sockaddr *)&at, &bytes) == 0 && at.ss_family != AF_UNIX;
    if (!link->is_tcp) return;
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (link->hub->options.keepalive <= 0) return;
    if (idle < 1) idle = 1;
    if (each < 1) each = 1;
    int count = 3;
    (void)setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

/* This side's greeting, into link->mine. */
static int make_greeting(ravel__link *link, const void *hello, int32_t bytes) {
    RAVEL_ASSERT(bytes >= 0 && bytes <= RAVEL__HELLO_MOST && link->hub->options.max_body >= 0);
    ravel__greeting g = {.role = link->connects ? RAVEL__ROLE_CONNECTS : RAVEL__ROLE_ACCEPTS};
    g.hello_bytes = (uint32_t)bytes;
    g.most_body = (uint64_t)link->hub->options.max_body;
    g.token_kind = link->token_kind;
    if (getrandom(g.nonce, sizeof g.nonce, 0) != (ssize_t)sizeof g.nonce) return 0;
    ravel__greeting_write(&g, link->mine);
    if (bytes > 0) memcpy(link->mine + RAVEL__GREETING_BYTES, hello, (size_t)bytes);
    link->mine_bytes = RAVEL__GREETING_BYTES + bytes;
    return 1;
}

static void send_raw(ravel__link *link, const void *bytes, int64_t count) {
    RAVEL_ASSERT(count > 0 && (link->state == LINK_GREETS || link->state == LINK_PROVES));
    if (!ravel__link_queue(link, bytes, count, 1))
        ravel__link_lose(link, "out of memory");
    else
        ravel__link_write(link);
}

/* ---- accepting ------------------------------------------------------------------------------------------ */

/* A process of another user does not come in through a Unix socket, nor is one talked to; root is one, too. */
static int is_same_user(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Sends the reason, as far as the socket takes it at once. */
static void send_refusal(int fd, const ravel__link *link, const char *why, int again) {
    uint8_t bytes[RAVEL__GREETING_BYTES + LINK_WHY], drop[4096];
    ravel__greeting g = {.role = RAVEL__ROLE_REFUSES, .hello_bytes = (uint32_t)strnlen(why, LINK_WHY)};
    g.most_body = again != 0;
    ravel__greeting_write(&g, bytes);
    memcpy(bytes + RAVEL__GREETING_BYTES, why, g.hello_bytes);
    const struct iovec one = {bytes, RAVEL__GREETING_BYTES + g.hello_bytes};
    if (link && link->tls)
        (void)link->hub->tls->write(link->tls, &one, 1);
    else
        (void)send(fd, bytes, one.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)recv(fd, drop, sizeof drop, MSG_DONTWAIT); /* bytes left unread would reset the connection */
}

static void turn_away(ravel__link *link, const char *why, int again) {
    RAVEL_ASSERT(!link->connects && link->state != LINK_UP && link->fd >= 0);
    send_refusal(link->fd, link, why, again);
    ravel__link_drop(link);
}

/* Which of the buckets that strangers are counted in: addresses of one host (in IPv6, of one network) share it. */
static uint8_t bucket_of(const ravel__hub *hub, const ravel__address *from) {
    uint64_t host = 0;
    if (from->at.ss_family == AF_INET)
        memcpy(&host, &((const struct sockaddr_in *)(const void *)&from->at)->sin_addr, 4);
    if (from->at.ss_family == AF_INET6) {
        const uint8_t *bytes = ((const struct sockaddr_in6 *)(const void *)&from->at)->sin6_addr.s6_addr;
        uint64_t halves[2];
        memcpy(halves, bytes, sizeof halves);
        host = halves[0] ? halves[0] : halves[1]; /* ::ffff:1.2.3.4 */
    }
    return (uint8_t)ravel__mix64(host ^ hub->luck.s[0]);
}

static int is_at(const ravel__link *link, link_state step) {
    return !link->connects && (link->state == step || (step == LINK_GREETS && link->state == LINK_SECURES));
}

/* If `most` accepted links or more are at this step of the handshake: closes one of those whose host has most of them.
 * Any one: with the oldest, a flood would need no more than to be faster than the handshake of others. */
static void make_room(ravel__hub *hub, link_state step, int32_t most) {
    RAVEL_ASSERT(step == LINK_GREETS || step == LINK_PROVES);
    int32_t counts[256] = {0}, count = 0, largest = 0;
    uint64_t seen = 0;
    ravel__link *chosen = NULL;
    for (const ravel__link *l = hub->links; l; l = l->next) {
        if (!is_at(l, step)) continue;
        count++;
        if (++counts[l->bucket] > largest) largest = counts[l->bucket];
    }
    for (ravel__link *l = hub->links; l && count >= most; l = l->next)
        if (is_at(l, step) && counts[l->bucket] == largest && ravel__rng_below(&hub->luck, ++seen) == 0) chosen = l;
    if (chosen) turn_away(chosen, "too many connections prove themselves at once", 1);
}

/* A process that connects through a Unix socket has no address of its own: it is named by the socket and its number. */
static void name_peer(ravel__link *link, const link_listener *listener, const ravel__address *from) {
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    char at[RAVEL__ADDRESS_TEXT];
    if (from->at.ss_family != AF_UNIX || getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) {
        (void)ravel__address_format(from, link->peer);
        return;
    }
    (void)snprintf(link->peer, sizeof link->peer, "process %lld at %.*s", (long long)peer.pid,
                   (int)sizeof link->peer - 40, ravel__address_format(&listener->at, at));
}

static void take_in(ravel__hub *hub, const link_listener *listener, int fd, const ravel__address *from) {
    RAVEL_ASSERT(fd >= 0 && hub->up >= 0);
    const char *why = NULL;
    int again = fd >= ravel__connections_most(); /* the lowest free number is always given */
    if (again) make_room(hub, LINK_GREETS, 1);
    if (again) why = "it has too many open files; raise the limit of descriptors (ulimit -n)";
    if (!ravel__networks_hold(hub->allow, from)) why = "this address is not in a network that it allows", again = 0;
    if (from->at.ss_family == AF_UNIX && !is_same_user(fd))
        why = "it belongs to another user; a Unix socket is for processes of one user", again = 0;
    if (!why) make_room(hub, LINK_GREETS, hub->options.max_strangers);
    ravel__link *link = why ? NULL : ravel__link_new(hub, 0);
    if (!link) {
        send_refusal(fd, NULL, why ? why : "it has no memory for another link", !why || again);
        (void)close(fd);
        return;
    }
    link->fd = fd;
    link->bucket = bucket_of(hub, from);
    choose_token(link, from);
    link->state = LINK_GREETS;
    link->patience = hub->options.handshake;
    link->deadline_ns = hub->polled_ns + (int64_t)(hub->options.handshake * SECOND_NS);
    name_peer(link, listener, from);
    set_options(link);
    (void)ravel__link_begins_tls(link);
    if (!make_greeting(link, NULL, 0) || ravel__link_watch(link, 1, 0) < 0) ravel__link_drop(link);
}

void ravel__hub_accept(ravel__hub *hub, link_listener *listener) {
    for (int i = 0; i < ACCEPTS; i++) {
        ravel__address from = {.bytes = sizeof from.at};
        int fd = accept4(listener->fd, (struct sockaddr *)&from.at, &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_in(hub, listener, fd, &from);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) { /* until the next tick */
            listener->paused = 1;
            (void)epoll_ctl(hub->epoll, EPOLL_CTL_DEL, listener->fd, NULL);
        }
        if (errno != EINTR && errno != ECONNABORTED) return;
    }
}

/* ---- connecting ----------------------------------------------------------------------------------------- */

void ravel__link_again(ravel__link *link, int64_t now, const char *trouble) {
    RAVEL_ASSERT(link->connects && link->state <= LINK_PROVES && link->next_address >= link->addresses);
    int several = strchr(link->addresses, ',') || link->hub->options.once; /* whose trouble it is must be said */
    (void)snprintf(link->trouble, sizeof link->trouble, "%s%s%s", several ? link->peer : "", several ? ": " : "",
                   trouble);
    ravel__link_end_tls(link);
    if (link->fd >= 0) (void)close(link->fd);
    link->fd = -1;
    link->state = LINK_WAITS;
    link->write_failed = 0;
    link->in_at = link->in_end = link->theirs_bytes = 0;
    ravel__link_free_queue(link);
    int more = *link->next_address != '\0'; /* the next one at once */
    if (!more && link->hub->options.once) {
        char why[LINK_WHY];
        (void)snprintf(why, sizeof why, "%s", link->trouble);
        ravel__link_lose(link, why);
        return;
    }
    if (!more) link->next_address = link->addresses;
    link->retry_ns = more ? now : now + link->pause_ns;
    if (!more && link->pause_ns < PAUSE_MOST_NS) link->pause_ns *= 2;
    if (link->retry_ns < link->hub->soonest_ns) link->hub->soonest_ns = link->retry_ns;
}

void ravel__link_try(ravel__link *link, int64_t now) {
    RAVEL_ASSERT(link->connects && link->state == LINK_WAITS && link->fd < 0 && *link->next_address);
    ravel__address at;
    ravel_error why = RAVEL_ERROR_INIT;
    size_t length = strcspn(link->next_address, ",");
    const char *word = link->next_address;
    link->next_address += length + (word[length] == ',');
    (void)snprintf(link->peer, sizeof link->peer, "%.*s", (int)length, word);
    if (ravel__address_parse(word, length, &at, &why)) {
        ravel__link_again(link, now, why.message);
        return;
    }
    if (uses_user_token(link->hub, &at) && find_user_token(link->hub, &why)) {
        ravel__link_again(link, now, why.message);
        return;
    }
    choose_token(link, &at);
    ravel__le32(link->mine + RAVEL__GREETING_KIND, link->token_kind);
    link->fd = socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0) {
        ravel__link_again(link, now, strerror(errno));
        return;
    }
    link->wants_out = 0;
    int code = connect(link->fd, (struct sockaddr *)&at.at, at.bytes) < 0 ? errno : 0;
    if (code && code != EINPROGRESS) {
        ravel__link_again(link, now, strerror(code));
        return;
    }
    link->state = LINK_CONNECTS;
    if (ravel__link_watch(link, 1, 1) < 0)
        ravel__link_again(link, now, strerror(errno));
    else if (!code)
        ravel__link_connected(link);
}

void ravel__link_connected(ravel__link *link) {
    RAVEL_ASSERT(link->connects && link->state == LINK_CONNECTS && link->fd >= 0 && !link->first);
    int code = 0;
    socklen_t bytes = sizeof code;
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &code, &bytes) < 0) code = errno;
    if (code) {
        ravel__link_again(link, ravel__clock_ns(), strerror(code));
        return;
    }
    link->state = LINK_GREETS;
    set_options(link);
    if (!link->is_tcp && !is_same_user(link->fd)) {
        ravel__link_lose(link, "the socket belongs to another user; a Unix socket is for processes of one user");
        return;
    }
    if (ravel__link_begins_tls(link))
        ravel__link_secure(link);
    else
        ravel__link_greet(link);
}

ravel_status ravel__hub_connect(ravel__hub *hub, const char *address, const void *hello, int32_t hello_bytes,
                                double timeout, void *owner, ravel__link **out, ravel_error *err) {
    if (!address || !*address || hello_bytes < 0 || hello_bytes > RAVEL__HELLO_MOST)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a link needs an address and a hello of at most %d bytes",
                               RAVEL__HELLO_MOST);
    ravel__link *link = ravel__link_new(hub, 1);
    char *addresses = link ? ravel__link_copy_text(hub->options.allocator, address) : NULL;
    if (link) link->addresses = link->next_address = addresses;
    if (!addresses || !make_greeting(link, hello, hello_bytes)) {
        if (link) ravel__link_drop(link);
        return ravel__no_memory(err, sizeof *link, "a link");
    }
    int64_t now = ravel__clock_ns();
    link->owner = owner;
    link->patience = timeout;
    link->deadline_ns = now + (int64_t)(timeout * SECOND_NS);
    link->pause_ns = PAUSE_LEAST_NS;
    link->retry_ns = hub->soonest_ns = now;
    RAVEL_ASSERT(link->state == LINK_WAITS && ravel__link_ok(link));
    *out = link;
    return RAVEL_OK;
}

/* ---- the handshake -------------------------------------------------------------------------------------- */

const char *ravel__link_token(const ravel__link *link) {
    return link->token_kind == RAVEL__TOKEN_USER ? link->hub->user_token : link->hub->token;
}

void ravel__link_greet(ravel__link *link) {
    send_raw(link, link->mine, link->mine_bytes);
}

static void prove(ravel__link *link, const char *word, uint8_t *digest) {
    RAVEL_ASSERT(link->mine_bytes >= RAVEL__GREETING_BYTES && link->theirs_bytes >= RAVEL__GREETING_BYTES);
    const uint8_t *first = link->connects ? link->mine : link->theirs,
                  *second = link->connects ? link->theirs : link->mine;
    size_t first_bytes = (size_t)(link->connects ? link->mine_bytes : link->theirs_bytes);
    size_t second_bytes = (size_t)(link->connects ? link->theirs_bytes : link->mine_bytes);
    ravel__link_proof(ravel__link_token(link), word, first, first_bytes, second, second_bytes, digest);
}

void ravel__link_refuse(ravel__link *link, const char *what) {
    char why[LINK_WHY];
    (void)snprintf(why, sizeof why, "%s: %s", link->peer, what);
    if (!link->connects) send_refusal(link->fd, link, what, 0);
    ravel__link_lose(link, why);
}

/* The other side refuses the link: 1. */
static int take_refusal(ravel__link *link, int32_t here) {
    const uint8_t *in = link->in + link->in_at;
    ravel__greeting g;
    char text[LINK_WHY / 2], why[LINK_WHY];
    if (here < RAVEL__GREETING_BYTES || ravel__greeting_read(in, RAVEL__ROLE_ACCEPTS, &g) ||
        g.role != RAVEL__ROLE_REFUSES)
        return 0;
    if (here < RAVEL__GREETING_BYTES + (int32_t)g.hello_bytes) return 1;
    ravel__peer_text(in + RAVEL__GREETING_BYTES, g.hello_bytes, text, sizeof text);
    (void)snprintf(why, sizeof why, "%s refused the link in the handshake: %s", link->peer, text);
    if (g.most_body)
        ravel__link_again(link, ravel__clock_ns(), why);
    else
        ravel__link_lose(link, why);
    return 1;
}

static void come_up(ravel__link *link) {
    RAVEL_ASSERT(link->state == LINK_PROVES && !link->was_up && link->in_number == 0 && link->out_number == 0);
    ravel__hub *hub = link->hub;
    uint8_t secret[RAVEL__SHA256_BYTES];
    prove(link, "connects key", secret);
    ravel__mac_key_make(link->connects ? &link->out_key : &link->in_key, secret);
    prove(link, "accepts key", secret);
    ravel__mac_key_make(link->connects ? &link->in_key : &link->out_key, secret);
    explicit_bzero(secret, sizeof secret);
    link->state = LINK_UP;
    link->trouble[0] = '\0'; /* of earlier attempts: it explains nothing that happens from here on */
    link->was_up = 1;
    hub->up += !link->connects;
    link->stage = IN_HEAD;
    link->deadline_ns = 0;
    link->last_in_ns = link->last_out_ns = hub->polled_ns;
    ravel__link_may_wait(link);
    hub->events++;
    const uint8_t *hello = link->theirs + RAVEL__GREETING_BYTES;
    if (hub->handler.up &&
        !hub->handler.up(hub->handler.user, link, hello, link->theirs_bytes - RAVEL__GREETING_BYTES) &&
        link->state != LINK_CLOSED)
        ravel__link_close(link, "refused");
}

static void take_greeting(ravel__link *link, int32_t here) {
    ravel__greeting g;
    const uint8_t *in = link->in + link->in_at;
    uint8_t digest[RAVEL__SHA256_BYTES];
    if (here > 0 && in[0] == RAVEL__TLS_FIRST && !link->connects) {
        ravel__link_refuse(link, "it does not use TLS, and this side does; ask for it on both (--tls, RAVEL_TLS=1)");
        return;
    }
    if (here < RAVEL__GREETING_BYTES || (link->connects && take_refusal(link, here))) return;
    const char *wrong = ravel__greeting_read(in, link->connects ? RAVEL__ROLE_ACCEPTS : RAVEL__ROLE_CONNECTS, &g);
    if (wrong) {
        ravel__link_refuse(link, wrong);
        return;
    }
    int32_t bytes = RAVEL__GREETING_BYTES + (int32_t)g.hello_bytes;
    RAVEL_ASSERT((size_t)bytes <= sizeof link->theirs && link->state == LINK_GREETS);
    if (here < bytes) return;
    memcpy(link->theirs, in, (size_t)bytes);
    link->theirs_bytes = bytes;
    link->most_out = g.most_body;
    link->peer_token_kind = g.token_kind;
    link->in_at += bytes;
    if (!link->connects) make_room(link->hub, LINK_PROVES, link->hub->options.max_strangers);
    link->state = LINK_PROVES;
    if (!link->connects) {
        send_raw(link, link->mine, link->mine_bytes);
        return;
    }
    prove(link, "connects", digest);
    send_raw(link, digest, sizeof digest);
}

static void take_proof(ravel__link *link, int32_t here) {
    uint8_t expected[RAVEL__SHA256_BYTES], digest[RAVEL__SHA256_BYTES];
    if (here < RAVEL__SHA256_BYTES) return;
    if (link->connects && ravel__greeting_begins(link->in + link->in_at)) {
        (void)take_refusal(link, here);
        return;
    }
    prove(link, link->connects ? "accepts" : "connects", expected);
    if (!ravel__digest_equal(expected, link->in + link->in_at)) {
        ravel__link_refuse(link, link->connects ? "its proof of the token is wrong"
                                                : ravel__token_mismatch(link->token_kind, link->peer_token_kind));
        return;
    }
    if (!link->connects && link->hub->up >= link->hub->options.max_links) {
        turn_away(link, "it has as many links as it takes", 1);
        return;
    }
    link->in_at += RAVEL__SHA256_BYTES;
    RAVEL_ASSERT(link->in_at <= link->in_end && link->state == LINK_PROVES);
    if (!link->connects) {
        prove(link, "accepts", digest);
        send_raw(link, digest, sizeof digest);
    }
    if (link->state == LINK_PROVES) come_up(link);
}

void ravel__link_handshake(ravel__link *link) {
    int32_t here = link->in_end - link->in_at;
    RAVEL_ASSERT(here >= 0 && link->state != LINK_UP && link->state != LINK_CLOSED);
    if (link->state == LINK_GREETS)
        take_greeting(link, here);
    else if (link->state == LINK_PROVES)
        take_proof(link, here);
}
