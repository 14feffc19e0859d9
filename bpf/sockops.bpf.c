// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The programs that bound every connection: sockops sets the options when a
 * connection opens and counts it when it closes, setsockopt holds the bound
 * against what the application sets later. Linux 5.10 and later.
 */
#include "sock.h"
#include "options.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* bpf_setsockopt may be called from setsockopt programs (Linux >= 5.15). */
const volatile bool can_set_others = true;

struct policy_trie {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SH_MAX_PREFIXES);
	__type(key, struct sh_prefix);
	__type(value, struct sh_rules);
};

/* The one slot holds the trie in force: a policy is swapped by one pointer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct policy_trie);
} sh_policy SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SH_MAX_POLICIES);
	__type(key, __u32);
	__type(value, struct sh_counters);
} sh_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SH_FAULT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} sh_faults SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} sh_events SEC(".maps");

/* Keep types in BTF that no map but the inner one mentions. */
const struct sh_event *const unused_event __attribute__((unused));
const enum sh_cause *const unused_cause __attribute__((unused));
const enum sh_fault *const unused_fault __attribute__((unused));
const enum sh_event_type *const unused_event_type __attribute__((unused));
const struct sh_prefix *const unused_prefix __attribute__((unused));
const struct sh_rules *const unused_rules __attribute__((unused));

static __always_inline void fault(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&sh_faults, &reason);

	if (n)
		(*n)++;
}

static __always_inline struct sh_counters *counters(__u32 policy)
{
	struct sh_counters *c = bpf_map_lookup_elem(&sh_stats, &policy);

	if (!c)
		fault(SH_FAULT_COUNTERS);
	return c;
}

/* The rules of the longest prefix that holds the address. */
static __always_inline struct sh_rules *find_rules(const __u8 *addr)
{
	struct sh_prefix key = {.prefixlen = 128};
	__u32 slot = 0;
	void *trie = bpf_map_lookup_elem(&sh_policy, &slot);

	if (!trie) {
		fault(SH_FAULT_NO_POLICY);
		return NULL;
	}
	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(trie, &key);
}

/* The first rule whose port and direction match. */
static __always_inline struct sh_rule *find_rule(struct sh_rules *rules, __u16 port, __u8 direction)
{
	for (__u32 i = 0; i < SH_MAX_RULES; i++) {
		struct sh_rule *r = &rules->rule[i];

		if (i >= rules->count)
			return NULL;
		if (r->direction & direction && port >= r->port_lo && port <= r->port_hi)
			return r;
	}
	return NULL;
}

/* Sets one option and counts a refusal. ctx is that of the calling program. */
#define set_opt(ctx, level, name, want, reason)                              \
	({                                                                   \
		int value = (want);                                          \
		if (bpf_setsockopt(ctx, level, name, &value, sizeof(value))) \
			fault(reason);                                       \
	})

/*
 * Brings the socket from one set of options to another. Keepalive comes first:
 * a user timeout on a socket whose keepalives are not set yet could end it for
 * one lost packet.
 */
#define set_options(ctx, from, to)                                                                \
	({                                                                                        \
		if ((to)->idle_s != (from)->idle_s)                                               \
			set_opt(ctx, SOL_TCP, TCP_KEEPIDLE, (to)->idle_s, SH_FAULT_SET_KEEPIDLE); \
		if ((to)->interval_s != (from)->interval_s)                                       \
			set_opt(ctx, SOL_TCP, TCP_KEEPINTVL, (to)->interval_s,                    \
				SH_FAULT_SET_KEEPINTVL);                                          \
		if ((to)->count != (from)->count)                                                 \
			set_opt(ctx, SOL_TCP, TCP_KEEPCNT, (to)->count, SH_FAULT_SET_KEEPCNT);    \
		if ((to)->keepalive != (from)->keepalive)                                         \
			set_opt(ctx, SOL_SOCKET, SO_KEEPALIVE, (to)->keepalive,                   \
				SH_FAULT_SET_KEEPALIVE);                                          \
		if ((to)->user_timeout_ms != (from)->user_timeout_ms)                             \
			set_opt(ctx, SOL_TCP, TCP_USER_TIMEOUT, (to)->user_timeout_ms,            \
				SH_FAULT_SET_USER_TIMEOUT);                                       \
	})

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

static __always_inline struct sh_rule *match(const struct sock *sk, __u8 direction)
{
	__u8 local[16], remote[16];
	struct sh_rules *rules;
	__u16 port;

	sock_addrs(sk, local, remote);
	rules = find_rules(remote);
	if (!rules)
		return NULL;
	port = direction == SH_OUTBOUND ? bpf_ntohs(sk->__sk_common.skc_dport)
					: sk->__sk_common.skc_num;
	return find_rule(rules, port, direction);
}

/* A connection opened: bound it if a policy names the peer. */
static __always_inline void opened(struct bpf_sock_ops *ctx, __u8 direction)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_counters *c;
	struct sh_record *rec;
	struct sh_rule *rule;

	if (!tp || is_mptcp(tp))
		return;
	rule = match(&tp->inet_conn.icsk_inet.sk, direction);
	if (!rule)
		return;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!rec)
		fault(SH_FAULT_STORAGE);
	c = counters(rule->policy);
	if (rec) {
		rec->version = SH_RECORD_VERSION;
		rec->direction = direction;
		rec->override = rule->override;
		rec->policy = rule->policy;
		rec->opened_ns = bpf_ktime_get_ns();
		rec->policed = rule->options;
		sock_options(tp, &rec->app);
		if (sh_tighten(&rec->policed, &rec->app, &rec->effective) && c)
			c->override_raised++;
		set_options(ctx, &rec->app, &rec->effective);
	} else {
		/* No memory for the record: the bound still holds. */
		struct sh_options app, effective;

		sock_options(tp, &app);
		sh_tighten(&rule->options, &app, &effective);
		set_options(ctx, &app, &effective);
		return;
	}
	bpf_get_socket_cookie(ctx); /* so that it has one to be known by */
	if (bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG |
						   BPF_SOCK_OPS_RTO_CB_FLAG))
		fault(SH_FAULT_CB_FLAGS);
	if (c)
		c->opened[direction == SH_INBOUND]++;
}

static __always_inline void emit(struct bpf_sock_ops *ctx, const struct tcp_sock *tp,
				 const struct sh_record *rec, __u8 type, __u8 cause)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	const struct sock *sk = &icsk->icsk_inet.sk;
	struct sh_event *e = bpf_ringbuf_reserve(&sh_events, sizeof(*e), 0);

	if (!e) {
		fault(SH_FAULT_EVENT_LOST);
		return;
	}
	e->time_ns = bpf_ktime_get_ns();
	e->cookie = bpf_get_socket_cookie(ctx);
	e->bytes_received = tp->bytes_received - sock_fin_received(sk);
	e->bytes_acked = tp->bytes_acked;
	e->netns = sk->__sk_common.skc_net.net->ns.inum;
	e->policy = rec->policy;
	sock_addrs(sk, e->local, e->remote);
	e->local_port = sk->__sk_common.skc_num;
	e->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	e->err = sk->sk_err;
	e->type = type;
	e->cause = cause;
	e->family = sk->__sk_common.skc_family;
	e->direction = rec->direction;
	e->retransmits = icsk->icsk_retransmits;
	e->probes_out = icsk->icsk_probes_out;
	e->spare = 0;
	bpf_ringbuf_submit(e, 0);
}

/*
 * Why the socket goes to CLOSE. tcp_write_err() reports the last ICMP error
 * instead of ETIMEDOUT where one came (sk_err_soft).
 */
static __always_inline __u8 close_cause(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int err = sk->sk_err;

	if (!err)
		return SH_CAUSE_NORMAL;
	if (err == ECONNRESET || err == EPIPE)
		return SH_CAUSE_RESET;
	if (err == ECONNABORTED)
		return SH_CAUSE_DESTROYED;
	if (err != ETIMEDOUT && err != sk->sk_err_soft)
		return SH_CAUSE_OTHER;
	return tp->write_seq == tp->snd_una ? SH_CAUSE_IDLE : SH_CAUSE_IN_FLIGHT;
}

static __always_inline void closed(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_counters *c;
	struct sh_record *rec;
	__u8 cause;

	if (!tp)
		return;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec)
		return;
	cause = close_cause(tp);
	c = counters(rec->policy);
	if (c) {
		c->closed[cause]++;
		c->bytes_received +=
			tp->bytes_received - sock_fin_received(&tp->inet_conn.icsk_inet.sk);
		c->bytes_acked += tp->bytes_acked;
	}
	if (cause != SH_CAUSE_NORMAL)
		emit(ctx, tp, rec, SH_EVENT_CLOSE, cause);
}

/* The first retransmission timeout of a stall. */
static __always_inline void stalled(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_counters *c;
	struct sh_record *rec;

	if (!tp)
		return;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec)
		return;
	c = counters(rec->policy);
	if (c)
		c->stalls++;
	emit(ctx, tp, rec, SH_EVENT_STALL, SH_CAUSE_NORMAL);
}

SEC("sockops") int sh_sockops(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		opened(ctx, SH_OUTBOUND);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		opened(ctx, SH_INBOUND);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == BPF_TCP_CLOSE)
			closed(ctx);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		if (ctx->args[0] == 0)
			stalled(ctx);
		break;
	}
	return 1;
}

/* Puts what the application asks for into its wish; false: not a valid wish. */
static __always_inline bool wish(struct sh_options *app, int level, int name, int value)
{
	if (level == SOL_SOCKET) {
		app->keepalive = !!value;
		return true;
	}
	switch (name) {
	case TCP_KEEPIDLE:
		app->idle_s = value;
		return value >= 1 && value <= 32767;
	case TCP_KEEPINTVL:
		app->interval_s = value;
		return value >= 1 && value <= 32767;
	case TCP_KEEPCNT:
		app->count = value;
		return value >= 1 && value <= 127;
	case TCP_USER_TIMEOUT:
		app->user_timeout_ms = value;
		return value >= 0;
	}
	return false;
}

/* The value of one option in a set. */
static __always_inline int option_value(const struct sh_options *o, int level, int name)
{
	if (level == SOL_SOCKET)
		return o->keepalive;
	switch (name) {
	case TCP_KEEPIDLE:
		return o->idle_s;
	case TCP_KEEPINTVL:
		return o->interval_s;
	case TCP_KEEPCNT:
		return o->count;
	}
	return o->user_timeout_ms;
}

static __always_inline bool is_ours(int level, int name)
{
	if (level == SOL_SOCKET)
		return name == SO_KEEPALIVE;
	return level == SOL_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL ||
				    name == TCP_KEEPCNT || name == TCP_USER_TIMEOUT);
}

/*
 * Kernels before 5.15 let this program rewrite only the option at hand: raise
 * it until the rule holds with the others as they are.
 */
static __always_inline void one_alone(const struct sh_record *rec, int level, int name,
				      struct sh_options *want)
{
	const struct sh_options *now = &rec->effective;
	__u32 room = sh_max(now->count, sh_min(rec->policed.count, SH_MIN_ROOM));
	__u32 need = (now->idle_s + now->interval_s * room) * 1000;
	struct sh_options one = *now;

	if (level == SOL_TCP && name == TCP_KEEPIDLE)
		one.idle_s = sh_min(want->idle_s, now->idle_s);
	else if (level == SOL_TCP && name == TCP_KEEPINTVL)
		one.interval_s = sh_min(want->interval_s, now->interval_s);
	else if (level == SOL_TCP && name == TCP_KEEPCNT)
		one.count = sh_min(want->count, now->count);
	else if (level == SOL_TCP)
		one.user_timeout_ms = sh_max(want->user_timeout_ms, need);
	*want = one;
}

/* Holds the bound; returns the value to set instead of the one asked for. */
static __always_inline int hold(struct bpf_sock *sk, struct sh_record *rec, int level, int name,
				int value)
{
	struct sh_counters *c = counters(rec->policy);
	struct sh_options app = rec->app, next, same;
	bool raised;
	int result;

	if (!wish(&app, level, name, value))
		return value; /* the kernel will say EINVAL */
	raised = sh_tighten(&rec->policed, &app, &next);
	if (!can_set_others)
		one_alone(rec, level, name, &next);
	result = option_value(&next, level, name);
	if (can_set_others) {
		/* All but the one that the kernel is about to set itself. */
		same = rec->effective;
		if (level == SOL_SOCKET)
			same.keepalive = next.keepalive;
		else if (name == TCP_KEEPIDLE)
			same.idle_s = next.idle_s;
		else if (name == TCP_KEEPINTVL)
			same.interval_s = next.interval_s;
		else if (name == TCP_KEEPCNT)
			same.count = next.count;
		else
			same.user_timeout_ms = next.user_timeout_ms;
		set_options(sk, &same, &next);
	}
	rec->app = app;
	rec->effective = next;
	if (c) {
		if (raised)
			c->override_raised++;
		if (result == value)
			c->override_kept++;
		else
			c->override_held++;
	}
	return result;
}

SEC("cgroup/setsockopt") int sh_setsockopt(struct bpf_sockopt *ctx)
{
	int level = ctx->level, name = ctx->optname, len = ctx->optlen;
	int *optval = ctx->optval, *end = ctx->optval_end;
	struct bpf_sock *sk = ctx->sk;
	struct sh_record *rec;
	int value, held;

	/* Older kernels refuse an option longer than what a program sees
	 * unless it says that it left it alone. */
	if (len > (void *)end - (void *)optval)
		ctx->optlen = 0;
	if (!is_ours(level, name) || !sk || (void *)(optval + 1) > (void *)end)
		return 1;
	rec = bpf_sk_storage_get(&sh_records, sk, NULL, 0);
	if (!rec)
		return 1;
	value = *optval;
	held = hold(sk, rec, level, name, value);
	if (held != value)
		*optval = held;
	return 1;
}
