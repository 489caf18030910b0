/* Links over TLS: the module, the step of the handshake before the link's own, and sockets read and written through it.
 *
 * Only TCP connections are encrypted; a Unix socket does not leave the machine. Peers of which one speaks TLS and the
 * other does not tell each other so, in plain: the first byte of a TLS connection is RAVEL__TLS_FIRST, that of a
 * link's greeting "R". */
#include "comm/link/link_state.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include "base/system/module.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- the module -------------------------------------------------------------------------------------------- */

static ravel_status find_table(const ravel__tls **table, ravel_error *err) {
    void *handle = NULL;
    const ravel__module module = {.what = "TLS",
                                  .variable = "RAVEL_TLS_MODULE",
                                  .advice = "build with libssl-dev (OpenSSL 3) installed",
                                  .names = {"libravel_tls.so", NULL}};
    ravel_status status = ravel__module_load(&module, &handle, err);
    ravel__tls_fn get = status ? NULL : (ravel__tls_fn)ravel__module_find(handle, "ravel_tls");
    if (status) return status;
    *table = get ? get() : NULL;
    if (*table && (*table)->version == RAVEL__TLS_VERSION && (*table)->bytes == (int32_t)sizeof **table)
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "the TLS module and libravel are of different builds; install both again");
}

static const char *file_of(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static ravel_status find_files(ravel__tls_files *files, ravel_error *err) {
    *files = (ravel__tls_files){file_of("RAVEL_TLS_CERT"), file_of("RAVEL_TLS_KEY"), file_of("RAVEL_TLS_CA")};
    int given = (files->certificate != NULL) + (files->key != NULL) + (files->authorities != NULL);
    if (given == 0 || given == 3) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "of RAVEL_TLS_CERT, RAVEL_TLS_KEY and RAVEL_TLS_CA only %s set; TLS with certificates needs all "
        "three, and without certificates none",
        given == 1 ? "one is" : "two are");
}

/* 1: the environment asks for TLS everywhere; 0: not; -1: it says something else. */
static int environment_asks(void) {
    const char *text = getenv("RAVEL_TLS");
    if (!text || !*text || strcmp(text, "0") == 0) return 0;
    return strcmp(text, "1") == 0 ? 1 : -1;
}

ravel_status ravel__hub_open_tls(ravel__hub *hub, ravel_error *err) {
    ravel__tls_files files;
    char why[RAVEL__TLS_WHY] = "";
    int asks = environment_asks();
    if (asks < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the environment's RAVEL_TLS is \"%.40s\"; it must be 0 or 1",
                               getenv("RAVEL_TLS"));
    if (!hub->options.tls && !asks) return RAVEL_OK;
    ravel_status status = find_files(&files, err);
    if (!status) status = find_table(&hub->tls, err);
    if (status) return status;
    RAVEL_ASSERT(hub->tls);
    hub->tls_context = hub->tls->open(&files, why);
    return hub->tls_context ? RAVEL_OK : ravel_error_set(err, RAVEL_E_ARGUMENT, "%s", why);
}

void ravel__hub_close_tls(ravel__hub *hub) {
    if (hub->tls_context) hub->tls->close(hub->tls_context);
    hub->tls_context = NULL;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

int ravel__link_begins_tls(ravel__link *link) {
    uint8_t key[RAVEL__SHA256_BYTES];
    ravel__hmac h;
    const ravel__hub *hub = link->hub;
    if (!hub->tls_context || !link->is_tcp) return 0;
    RAVEL_ASSERT(!link->tls && link->fd >= 0);
    const char *token = ravel__link_token(link);
    ravel__hmac_begin(&h, token, strlen(token));
    ravel__hmac_add(&h, "ravel tls", sizeof "ravel tls");
    ravel__hmac_end(&h, key);
    link->tls = hub->tls->begin(hub->tls_context, link->fd, !link->connects, key);
    explicit_bzero(key, sizeof key);
    link->state = LINK_SECURES;
    return 1;
}

void ravel__link_end_tls(ravel__link *link) {
    if (link->tls) link->hub->tls->end(link->tls);
    link->tls = NULL;
}

/* The peer speaks the link's protocol without TLS. */
static int is_plain(const ravel__link *link) {
    uint8_t first[8];
    return recv(link->fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof first &&
           ravel__greeting_begins(first);
}

void ravel__link_secure(ravel__link *link) {
    char why[RAVEL__TLS_WHY] = "", text[LINK_WHY];
    int writes = 0, done = -1;
    RAVEL_ASSERT(link->state == LINK_SECURES && link->fd >= 0);
    if (link->tls && is_plain(link)) {
        ravel__link_end_tls(link);
        link->state = LINK_GREETS;
        if (link->connects) /* its refusal is read as it came */
            ravel__link_read(link);
        else
            ravel__link_refuse(link, "it speaks TLS only; ask for it on both sides (--tls, RAVEL_TLS=1)");
        return;
    }
    if (link->tls) done = link->hub->tls->handshake(link->tls, &writes, why);
    if (done < 0 && link->connects && !why[0]) { /* perhaps it is only just starting */
        ravel__link_again(link, ravel__clock_ns(), "the connection was closed in the handshake");
        return;
    }
    if (done < 0) {
        (void)snprintf(text, sizeof text, "%s: %s; are the tokens the same, and the certificates right?", link->peer,
                       link->tls ? why[0] ? why : "it closed the connection" : "no memory for TLS");
        ravel__link_lose(link, text);
        return;
    }
    if (done == 0 && writes != link->wants_out) (void)ravel__link_watch(link, 0, writes);
    if (done == 0) return;
    link->state = LINK_GREETS;
    if (link->wants_out) (void)ravel__link_watch(link, 0, 0);
    if (link->connects) ravel__link_greet(link);
    if (link->state == LINK_GREETS && link->hub->tls->pending(link->tls)) ravel__link_read(link);
}

/* ---- bytes ------------------------------------------------------------------------------------------------- */

ssize_t ravel__link_tls_recv(ravel__link *link, const struct iovec *list, int count) {
    const ravel__tls *tls = link->hub->tls;
    ssize_t all = 0;
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < list[i].iov_len;) {
            ssize_t got = tls->read(link->tls, (uint8_t *)list[i].iov_base + at, list[i].iov_len - at);
            if (got <= 0) return all > 0 ? all : got;
            at += (size_t)got;
            all += got;
        }
    return all;
}

int ravel__link_tls_pending(const ravel__link *link) {
    return link->tls && link->hub->tls->pending(link->tls);
}
