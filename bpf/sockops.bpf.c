// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The programs that bound every connection: sockops sets the options when a
 * connection opens and counts it when it closes, setsockopt holds the bound
 * against what the application sets later. Linux 5.10 and later.
 */
#include "hold.h"
#include "kernels.h"
#include "match.h"
#include "tell.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The record of a socket. convert.bpf.c has another way, for the time of an upgrade. */
#ifndef SH_UPGRADE
#define record_of(sk)	  bpf_sk_storage_get(&sh_records, sk, NULL, 0)
#define forget_record(sk) bpf_sk_storage_delete(&sh_records, sk)
#define bring_record(sk)  ((void)0) /* it is in the one map already */
#endif

/* Keep types in BTF that no map mentions. */
const struct sh_event *const unused_event __attribute__((unused));
const enum sh_cause *const unused_cause __attribute__((unused));
const enum sh_fault *const unused_fault __attribute__((unused));
const enum sh_event_type *const unused_event_type __attribute__((unused));

static __always_inline struct tcp_sock *ctx_tcp_sock(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct tcp_sock *tp;

	if (!sk) {
		fault(SH_FAULT_NO_SOCK);
		return NULL;
	}
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		fault(SH_FAULT_NO_TCP_SOCK);
	return tp;
}

#include "undo.h"

static __always_inline struct sh_rule *match(struct bpf_sock_ops *ctx, const struct sock *sk,
					     __u32 direction)
{
	void *trie = policy_in_force();
	__u8 local[16], remote[16];
	struct sh_rules *rules;
	__u32 at;

	if (!trie)
		return NULL;
	sock_addrs(sk, local, remote);
	rules = find_rules(trie, remote);
	if (!rules)
		return NULL;
	at = find_rule(rules, service_port(sk, direction), direction, hidden(&ctx->op, 0));
	if (at >= NO_RULE)
		return NULL;
	return rule_of(rules, at);
}

/*
 * Notes what the application has asked for by now. Where the user timeout is that of
 * connect(), what it asked for stands in the record.
 */
static __always_inline void ask(struct sh_record *rec, const struct sh_options *now)
{
	__u32 connecting = if_any(rec->flags & SH_CONNECTING);
	__u32 ours = if_equal(now->user_timeout_ms, rec->effective.user_timeout_ms) & connecting;
	struct sh_options app = *now;

	app.asked = choose_if(connecting, rec->app.asked, now->asked);
	app.user_timeout_ms = choose_if(ours, rec->app.user_timeout_ms, now->user_timeout_ms);
	rec->app = app;
}

/*
 * Sets what the policy of the record wants, and has the close told. Like
 * sh_bound_bare() a global function: the verifier looks at it once, and not once
 * for each rule that may have matched, which is most of what loading took.
 */
__noinline int sh_bound(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_options now;
	struct sh_counters *c;
	struct sh_record *rec;
	bool raised, told;

	if (!tp)
		return 0;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec)
		return 0; /* it was there a moment ago */
	sock_options(tp, &now);
	ask(rec, &now);
	rec->flags = 0;
	rec->guard_ms = 0;
	rec->guard_was_ms = 0;
	rec->pace = 0;
	rec->room = 0;
	rec->rto_was_ms = sock_rto_max_ms(tp) & if_any(rec->policed.rto_max);
	rec->opened_ns = bpf_ktime_get_ns();
	raised = sh_combine(rec->override, &rec->policed, &rec->app, &rec->effective);
	set_options(ctx, &now, &rec->effective);
	bpf_get_socket_cookie(ctx); /* so that it has one to be known by */
	told = !bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_STATE_CB_FLAG |
						       BPF_SOCK_OPS_RTO_CB_FLAG);
	if (!told) /* its close will not be: no connection to count */
		fault(SH_FAULT_CB_FLAGS);
	c = counters(rec->policy);
	if (!c)
		return 0;
	COUNT(c->override_raised, raised);
	if (told)
		COUNT(c->opened[rec->direction == SH_INBOUND], 1);
	return 0;
}

/* The options of a rule in two words, for functions that take no pointers. */
static __always_inline __u64 pack_times(const struct sh_options *o)
{
	return o->user_timeout_ms | (__u64)o->idle_s << 32 | (__u64)o->interval_s << 48;
}

static __always_inline __u32 pack_rest(const struct sh_options *o, __u8 override)
{
	return o->count | o->keepalive << 8 | override << 16 | (__u32)o->rto_max << 24;
}

/* Sets what a policy wants on a connection without a record: the bound still holds. */
__noinline int sh_bound_bare(struct bpf_sock_ops *ctx, __u64 times, __u32 rest)
{
	struct sh_options policed = {
		.user_timeout_ms = times,
		.idle_s = times >> 32,
		.interval_s = times >> 48,
		.count = rest,
		.keepalive = rest >> 8,
		.rto_max = rest >> 24,
	};
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_options app, effective;

	if (!tp)
		return 0;
	sock_options(tp, &app);
	sh_combine(rest >> 16, &policed, &app, &effective);
	set_options(ctx, &app, &effective);
	return 0;
}

/*
 * Bounds connect() as the record wants. Its end is told as that of a connection:
 * what the application had set must come back then.
 */
__noinline int sh_connecting(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_options now;
	struct sh_record *rec;

	if (!tp)
		return 0;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec)
		return 0;
	sock_options(tp, &now);
	ask(rec, &now);
	rec->effective = now;
	rec->effective.user_timeout_ms =
		sh_connect(rec->override, rec->connect_ms, rec->app.user_timeout_ms);
	rec->flags = SH_CONNECTING;
	rec->opened_ns = bpf_ktime_get_ns();
	set_options(ctx, &now, &rec->effective);
	bpf_get_socket_cookie(ctx);
	if (bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		fault(SH_FAULT_CB_FLAGS);
	return 0;
}

/* Gives a socket the user timeout back that it had, or was to get, before connect(). */
__noinline int sh_connected(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_options now;
	struct sh_record *rec;

	if (!tp)
		return 0;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec || !(rec->flags & SH_CONNECTING))
		return 0;
	sock_options(tp, &now);
	ask(rec, &now);
	if (now.user_timeout_ms != rec->app.user_timeout_ms)
		set_opt(ctx, SOL_TCP, TCP_USER_TIMEOUT, rec->app.user_timeout_ms,
			SH_FAULT_SET_USER_TIMEOUT);
	forget_record(tp);
	return 0;
}

/*
 * Keeps what the rule wants of the connection and does it. What follows the match
 * is done in functions of their own, see sh_bound().
 */
static __always_inline void bound(struct bpf_sock_ops *ctx, struct tcp_sock *tp,
				  const struct sh_rule *rule, __u32 direction, __u32 connects)
{
	struct sh_record *rec =
		bpf_sk_storage_get(&sh_records, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!rec) {
		fault(SH_FAULT_STORAGE);
		if (connects)
			return; /* nobody could give the user timeout back */
		sh_bound_bare(ctx, pack_times(&rule->options),
			      pack_rest(&rule->options, rule->override));
		return;
	}
	rec->version = SH_RECORD_VERSION;
	rec->direction = direction;
	rec->override = rule->override;
	rec->policy = rule->policy;
	rec->connect_ms = rule->connect_ms;
	rec->policed = rule->options;
	if (connects)
		sh_connecting(ctx);
	else
		sh_bound(ctx);
}

/* A connection opened, or is about to: bound it if a policy names the peer. */
static __always_inline void opened(struct bpf_sock_ops *ctx)
{
	__u32 direction =
		hidden(&ctx->op,
		       ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? SH_INBOUND : SH_OUTBOUND);
	__u32 connects = hidden(&ctx->op, ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB);
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_rule *rule;
	__u32 kernels;

	if (!tp || is_mptcp(tp))
		return;
	bring_record(tp);
	kernels = hidden(&ctx->op, is_kernels(tp));
	rule = match(ctx, &tp->inet_conn.icsk_inet.sk, direction);
	if (!rule || (kernels && !(rule->flags & SH_TAKE_KERNELS))) {
		if (!connects) /* one may have named it when it began */
			sh_connected(ctx);
		return;
	}
	if (connects && !rule->connect_ms)
		return;
	bound(ctx, tp, rule, direction, connects);
}

static __always_inline void listens(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);

	if (tp)
		mark_listener(tp);
}

/* connect() failed: was it by the policy's bound? */
static __always_inline void not_connected(struct bpf_sock_ops *ctx, const struct tcp_sock *tp,
					  struct sh_record *rec, int old)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 limit = rec->effective.user_timeout_ms * 1000000ULL;
	/* The kernel counts in whole milliseconds, and in ticks. */
	__u64 took = bpf_ktime_get_ns() - rec->opened_ns + 1000000000 / hz;
	struct sh_counters *c;

	/* The application's own, or the end of its attempts, may have come first. */
	if (limit && rec->effective.user_timeout_ms != rec->app.user_timeout_ms &&
	    (sk->sk_err == ETIMEDOUT || (sk->sk_err && sk->sk_err == sk->sk_err_soft)) &&
	    took >= limit) {
		c = counters(rec->policy);
		if (c)
			COUNT(c->connects_bounded, 1);
		emit(tp, rec, old, SH_EVENT_CLOSE, SH_CAUSE_CONNECT);
	}
	sh_connected(ctx);
}

static __always_inline void closed(struct bpf_sock_ops *ctx, int old)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_record *rec;

	if (!tp)
		return;
	rec = record_of(tp);
	if (!rec)
		return;
	if (rec->flags & SH_CONNECTING) {
		not_connected(ctx, tp, rec, old);
		return;
	}
	tell_close(tp, rec, old, hidden(&ctx->op, close_cause(tp)));
	/* The socket may be connected again, to a peer that no policy names. */
	forget_record(tp);
}

/* The first retransmission timeout of a stall. */
static __always_inline void stalled(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_counters *c;
	struct sh_record *rec;

	if (!tp)
		return;
	rec = record_of(tp);
	if (!rec || rec->flags & SH_CONNECTING)
		return;
	sh_unguard(ctx);
	c = counters(rec->policy);
	if (c)
		COUNT(c->stalls, 1);
	emit(tp, rec, tp->inet_conn.icsk_inet.sk.__sk_common.skc_state, SH_EVENT_STALL,
	     SH_CAUSE_NORMAL);
}

SEC("sockops") int sh_sockops(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		opened(ctx);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listens(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == BPF_TCP_CLOSE)
			closed(ctx, ctx->args[0]);
		else if (ctx->args[1] == BPF_TCP_FIN_WAIT1 || ctx->args[1] == BPF_TCP_LAST_ACK ||
			 ctx->args[1] == BPF_TCP_CLOSING)
			sh_closing(ctx);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		if (ctx->args[0] == 0)
			stalled(ctx);
		break;
	}
	return 1;
}

/* An option through whose value the kernel writes back to the caller's memory. */
static __always_inline bool writes_back(int level, int name)
{
	return level == SOL_IPV6 && name == IPV6_FLOWLABEL_MGR;
}

SEC("cgroup/setsockopt") int sh_setsockopt(struct bpf_sockopt *ctx)
{
	int level = ctx->level, name = ctx->optname, len = ctx->optlen;
	int *optval = ctx->optval, *end = ctx->optval_end;
	struct bpf_sock *sk = ctx->sk;
	struct sh_record *rec;
	int value, held;

	/*
	 * The length is one for all programs on this call: others may have handled
	 * the option themselves (-1) or changed its value, so that it is left as it
	 * is wherever it can be. With 0 the kernel takes the caller's own memory,
	 * which it must for a value longer than a program sees (older kernels refuse
	 * it else), and where it writes back.
	 */
	if (len > (long)((void *)end - (void *)optval) || writes_back(level, name))
		ctx->optlen = 0;
	if (!is_ours(level, name) || !sk || len < 0 || (len && len < (int)sizeof(*optval)) ||
	    (void *)(optval + 1) > (void *)end)
		return 1;
	rec = record_of(sk);
	if (!rec)
		return 1;
	value = *optval;
	level = hidden((__u32 *)&ctx->level, level);
	name = hidden((__u32 *)&ctx->level, name);
	held = hold(sk, rec, level, name, value);
	if (held == value)
		return 1;
	*optval = held;
	ctx->optlen = sizeof(held);
	return 1;
}
