/* Routing, and the weights of what experts give. Body: included once per instruction set. A row of logits is short, so
 * its kernels are the reference's, rows dealt to threads. */

static void route_task(const void *user, int64_t run, int32_t thread) {
    const train_route *x = user;
    (void)thread;
    train__ref_route_rows(x, run * RUN, train__min(x->rows, (run + 1) * RUN));
}

static void cpu_route(train_device *d, const train_route *x) {
    RAVEL_ASSERT(train__route_ok(x));
    train__cpu_run(d, runs_of(x->rows), route_task, x);
}

static void route_back_task(const void *user, int64_t run, int32_t thread) {
    const train_route *x = user;
    (void)thread;
    train__ref_route_rows_backward(x, run * RUN, train__min(x->rows, (run + 1) * RUN));
}

static void cpu_route_backward(train_device *d, const train_route *x) {
    RAVEL_ASSERT(train__route_backward_ok(x));
    train__cpu_run(d, runs_of(x->rows), route_back_task, x);
}

static void weigh_task(const void *user, int64_t run, int32_t thread) {
    const train_weigh *x = user;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(x->rows, (run + 1) * RUN); r++) {
        float *row = (float *)x->x + r * x->width;
        vf weight = splat(x->weights[train__weigh_place(x, r)]);
        for (int64_t i = 0; i < x->width; i += LANES) store_at(row, weight * load_at(row, i, x->width), i, x->width);
    }
}

static void cpu_weigh(train_device *d, const train_weigh *x) {
    RAVEL_ASSERT(train__weigh_ok(x));
    train__cpu_run(d, runs_of(x->rows), weigh_task, x);
}

static void weigh_back_task(const void *user, int64_t run, int32_t thread) {
    const train_weigh *x = user;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(x->rows, (run + 1) * RUN); r++) {
        float *row = (float *)x->x + r * x->width, *d_row = (float *)x->d_y + r * x->width;
        vf weight = splat(x->weights[train__weigh_place(x, r)]), dot = {0};
        for (int64_t i = 0; i < x->width; i += LANES) {
            vf a = load_at(row, i, x->width), b = load_at(d_row, i, x->width);
            dot += a * b;
            store_at(row, weight * a, i, x->width);
            store_at(d_row, weight * b, i, x->width);
        }
        x->d_weights[train__weigh_place(x, r)] = sum_of(dot);
    }
}

static void cpu_weigh_backward(train_device *d, const train_weigh *x) {
    RAVEL_ASSERT(train__weigh_ok(x) && x->d_y);
    train__cpu_run(d, runs_of(x->rows), weigh_back_task, x);
}
