// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * One pass over the sockets of a namespace that brings every connection in line
 * with the policy in force, whatever it missed: connections older than the
 * programs or made outside their cgroup, a policy that changed, options that
 * somebody changed. It may be repeated at will. Linux 5.15 and later
 * (bpf_setsockopt in TCP iterators).
 */
#include "bring.h"
#include "choose.h"
#include "connects.h"
#include "drift.h"
#include "listens.h"
#include "refuse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008

/* The passes that run, by the inode of the namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct sh_pass);
} sh_passes SEC(".maps");

const struct sh_adoption *const unused_adoption __attribute__((unused));
const enum sh_leave *const unused_leave __attribute__((unused));
const enum sh_adopt_outcome *const unused_outcome __attribute__((unused));
const enum sh_refusal *const unused_refusal __attribute__((unused));
const enum sh_record_flags *const unused_flags __attribute__((unused));
const enum sh_wait *const unused_wait __attribute__((unused));

/*
 * A row that finds its buffer full makes the iterator come back to its socket,
 * with an empty one: nothing may have been done to it before.
 */
static __always_inline bool is_full(const struct seq_file *seq)
{
	return seq->count + sizeof(struct sh_adoption) >= seq->size;
}

/* Global functions, as fault() is. */
__noinline int came(__u32 policy)
{
	struct sh_counters *c = counters(policy);

	if (c)
		COUNT(c->adopted, 1);
	return 0;
}

__noinline int left(__u32 policy)
{
	struct sh_counters *c = counters_of(policy);

	if (c)
		COUNT(c->released, 1);
	return 0;
}

/* Sees to it that sockops is called for the end of the connection, and for stalls. */
static __always_inline void call_back(struct tcp_sock *tp, const struct sh_pass *pass)
{
	int have = tp->bpf_sock_ops_cb_flags;
	int want = have | BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG;

	if (pass->callbacks && want != have)
		set_opt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, want, SH_FAULT_CB_FLAGS);
}

/* A connection without a record gets one, of what it is now. */
static __always_inline struct sh_record *begin(struct tcp_sock *tp, const struct sh_rule *rule)
{
	struct sh_record *rec =
		bpf_sk_storage_get(&sh_records, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!rec) {
		fault(SH_FAULT_STORAGE);
		return NULL;
	}
	bpf_get_socket_cookie(tp);
	rec->version = SH_RECORD_VERSION;
	rec->flags = SH_ADOPTED;
	rec->policy = rule->policy;
	rec->opened_ns = bpf_ktime_get_ns();
	sock_options(tp, &rec->app);
	rec->app.rto_max = 0; /* not looked at: it stays where it is the lower one */
	rec->effective = rec->app;
	came(rule->policy);
	return rec;
}

/* Writes what the policy wants into the record; returns whether that is new. */
__noinline int conform(struct sh_record *rec, struct sh_rule *rule, struct sh_options *want)
{
	struct sh_counters *c;
	bool same;

	if (!rec || !rule || !want)
		return 0;
	same = rec->policy == rule->policy && rec->override == rule->override &&
	       same_options(&rec->policed, &rule->options) && !(rec->flags & SH_RELEASING);
	if (rec->policy != rule->policy) {
		left(rec->policy);
		came(rule->policy);
	}
	rec->flags &= ~SH_RELEASING;
	rec->policy = rule->policy;
	rec->override = rule->override;
	rec->policed = rule->options;
	c = counters_of(rule->policy);
	if (sh_combine(rec->override, &rec->policed, &rec->app, want) && !same && c)
		COUNT(c->override_raised, 1);
	return !same;
}

/*
 * What the application last asked for, of a connection that no policy names any
 * more. An option once set cannot be unset: the namespace's own value it is.
 */
__noinline int release(struct sh_record *rec, struct sh_pass *pass, struct sh_options *want)
{
	if (!rec || !pass || !want)
		return 0;
	rec->flags |= SH_RELEASING;
	rec->override = SH_ALLOW; /* what it asks for meanwhile is let through */
	rec->policed = rec->app;
	*want = rec->app;
	want->rto_max = 0;
	if (!want->idle_s && rec->effective.idle_s)
		want->idle_s = pass->idle_s;
	if (!want->interval_s && rec->effective.interval_s)
		want->interval_s = pass->interval_s;
	if (!want->count && rec->effective.count)
		want->count = pass->count;
	return 0;
}

/*
 * Sets what the record and the rule want, where it has one, and says in row what became
 * of it.
 */
static __always_inline void treat(struct tcp_sock *tp, struct sh_pass *pass, struct sh_record *rec,
				  struct sh_rule *rule, __u32 has, struct sh_adoption *row)
{
	struct sh_options now = {}, want = {};
	bool guarded;

	options_meant(tp, rec, &now, &guarded);
	if (row->outcome != SH_ADOPT_ADOPTED && drifted(rec, &now))
		row->outcome = SH_ADOPT_DRIFTED;
	if (!has) {
		release(rec, pass, &want);
	} else {
		if (conform(rec, rule, &want) && row->outcome != SH_ADOPT_ADOPTED)
			row->outcome = SH_ADOPT_CHANGED;
		call_back(tp, pass);
	}
	/* Under the guard it is a matter of what is set when that is over. */
	if (guarded && want.user_timeout_ms)
		rec->effective.user_timeout_ms = now.user_timeout_ms = want.user_timeout_ms;
	row->wait = bring(tp, pass, rec, &now, &want);
	rec->effective.rto_max = now.rto_max;
	options_meant(tp, rec, &rec->effective, &guarded);
	if (guarded && !has && !row->wait)
		row->wait = SH_WAIT_WINDOW; /* nobody would put it back without the record */
	if (!row->wait && !same_options(&rec->effective, &want))
		row->wait = SH_WAIT_ERROR;
	keep_prober(rec, &want);
	rec->flags = row->wait ? rec->flags | SH_PENDING : rec->flags & ~SH_PENDING;
	row->flags = rec->flags;
	if (!has && !row->wait) {
		/* Nobody would know without the record that it is the guard's. */
		if (rec->pace && sock_rto_max_ms(tp) == rec->pace * 100)
			set_rto_max(tp, rec, 0);
		row->outcome = SH_ADOPT_RELEASED;
		left(rec->policy);
		bpf_sk_storage_delete(&sh_records, tp);
	}
}

/* The record of a connection that a rule names, NULL: no memory for it. */
static __always_inline struct sh_record *named(struct tcp_sock *tp, const volatile __u32 *any,
					       struct sh_record *rec, const struct sh_rule *rule,
					       __u8 direction, bool ambiguous,
					       struct sh_adoption *row)
{
	row->policy = rule->policy;
	row->direction = direction;
	if (!rec) {
		rec = begin(tp, rule);
		row->outcome = hidden(any, SH_ADOPT_ADOPTED);
	}
	if (!rec) {
		row->outcome = SH_ADOPT_REFUSED;
		row->refusal = SH_REFUSE_ERROR;
		return NULL;
	}
	row->flags = rec->flags;
	rec->direction = direction;
	rec->flags = (rec->flags & ~SH_AMBIGUOUS) | (if_any(ambiguous) & SH_AMBIGUOUS);
	return rec;
}

/* Whether a judgement of this agent's is under way, which has the options. */
static __always_inline bool is_judged(const struct sh_pass *pass, const struct sh_record *rec)
{
	__u64 until = rec->leave_ns;

	return if_less_long(bpf_ktime_get_ns(), until) &
	       ~if_less_long(until, pass->began_ns + SH_LEAVE_NS) & 1;
}

/* Says in row what a connection with a record is. */
static __always_inline void has_record(const volatile __u32 *any, struct sh_record *rec,
				       struct sh_adoption *row)
{
	if (rec->flags & SH_CONNECTING) { /* sockops did not see it made */
		rec->flags = SH_ADOPTED;
		came(rec->policy);
	}
	row->policy = rec->policy;
	row->direction = rec->direction;
	row->flags = rec->flags;
	row->outcome = hidden(any, SH_ADOPT_MANAGED);
}

/*
 * Sees to one connection. Without an outcome in row there is nothing to tell. any is what
 * hidden() takes.
 */
static __always_inline void visit(struct tcp_sock *tp, struct sh_pass *pass,
				  const volatile __u32 *any, struct sh_adoption *row)
{
	struct sh_record *rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	struct sh_rules *rules = NULL;
	struct sh_rule *rule = NULL, copy;
	__u32 has;
	__u8 direction = 0, which = 0;
	void *trie;

	row->refusal = hidden(any, refusal(tp));
	if (!pass->leave) {
		trie = policy_in_force();
		if (!trie)
			return;
		rules = find_rules(trie, row->remote);
	}
	if (rules) {
		which = directions(pass, rec, row);
		rule = choose(rules, which, row, &direction);
		direction = hidden(any, direction);
	}
	if (rule && !rec && rule->flags & SH_LEAVE_EXISTING)
		return;
	if (row->refusal == SH_REFUSE_KERNEL && rule && rule->flags & SH_TAKE_KERNELS)
		row->refusal = hidden(any, SH_REFUSE_NONE);
	if (row->refusal == SH_REFUSE_KERNEL && rec) {
		row->refusal = hidden(any, SH_REFUSE_NONE);
		rule = NULL; /* it was managed: let go of it */
	}
	if (row->refusal) {
		if (!rule)
			return;
		row->policy = rule->policy;
		row->direction = direction;
		row->outcome = SH_ADOPT_REFUSED;
		return;
	}
	if (rec) {
		has_record(any, rec, row);
		if (is_judged(pass, rec)) {
			row->wait = SH_WAIT_PROBER;
			return;
		}
	}
	/* A copy, all 0 where there is no rule: what follows is looked at once for both. */
	__builtin_memset(&copy, 0, sizeof(copy));
	if (rule)
		__builtin_memcpy(&copy, rule, sizeof(copy));
	has = hidden(any, !!rule);
	if (rule)
		rec = named(tp, any, rec, rule, direction, which == SH_BOTH, row);
	if (rec)
		treat(tp, pass, rec, &copy, has, row);
}

/* Writes one struct sh_adoption a socket that a rule names, or named until now. */
SEC("iter/tcp") int sh_adopt(struct bpf_iter__tcp *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct sock_common *skc = ctx->sk_common;
	struct sh_adoption row = {};
	struct sh_pass *pass;
	struct tcp_sock *tp;
	struct sock *sk;
	__u32 netns;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc); /* NULL: a request or TIME_WAIT */
	if (!tp)
		return 0;
	sk = &tp->inet_conn.icsk_inet.sk;
	row.netns = sk->__sk_common.skc_net.net->ns.inum;
	netns = row.netns;
	pass = bpf_map_lookup_elem(&sh_passes, &netns);
	if (!pass)
		return 0;
	row.state = sk->__sk_common.skc_state;
	sock_addrs(sk, row.local, row.remote);
	row.local_port = sk->__sk_common.skc_num;
	row.remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	row.family = sk->__sk_common.skc_family;
	row.bound_dev = sk->__sk_common.skc_bound_dev_if;
	if (row.state == BPF_TCP_SYN_SENT)
		connects(tp, pass);
	else if (pass->leave == SH_LEAVE_CONNECTS)
		return 0;
	else if (row.state == BPF_TCP_LISTEN)
		listens(tp, pass, &row);
	else if (carries_connection(row.state) && !is_full(seq))
		visit(tp, pass, (__u32 *)&ctx->meta->session_id, &row);
	row.cookie = sk->__sk_common.skc_cookie.counter;
	if (row.outcome || is_full(seq))
		bpf_seq_write(seq, &row, sizeof(row));
	return 0;
}

/* Tries on a socket of the agent's own whether callback flags can be set. */
SEC("iter/tcp") int sh_callbacks(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;
	int flags = 0;
	__s32 err;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp || tp->inet_conn.icsk_inet.sk.__sk_common.skc_state != BPF_TCP_LISTEN)
		return 0;
	err = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	bpf_seq_write(ctx->meta->seq, &err, sizeof(err));
	return 0;
}
