// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The silence watch: one pass over the records of every network namespace that
 * tells of connections on which a request is out and nothing comes back. It takes
 * no socket's lock, and what it tells of fits into one read: every further read
 * would walk over the records before once more (kernel-facts S8). Linux 5.10 and
 * later.
 */
#include "sock.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* How long a request may stay unanswered, in milliseconds, by policy: none, no watch. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SH_MAX_POLICIES);
	__type(key, __u32);
	__type(value, __u32);
} sh_silences SEC(".maps");

/* A connection to be judged. */
struct sh_suspect {
	__u64 cookie;
	__u32 netns;
	__u32 policy;
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 bound_dev;
	__u32 request_ms; /* how long its request is out */
	__u32 heard_ms;	  /* since anything came */
	__u8 family;
	__u8 asked; /* how often it was suspected before, since payload last came */
	__u8 in_flight;
	__u8 pad[5];
};

const struct sh_suspect *const unused_suspect __attribute__((unused));

__u64 put_off; /* suspects that found no room in this pass */

/*
 * How far apart two moments are that ticks can tell apart, whatever the tick and
 * however late it was. A peer that delays acknowledgements takes 40 ms at least.
 */
#define SH_TIE_MS 20

/* States in which an answer can still come. */
static __always_inline bool may_answer(int state)
{
	return state == BPF_TCP_ESTABLISHED || state == BPF_TCP_FIN_WAIT1 ||
	       state == BPF_TCP_FIN_WAIT2;
}

/*
 * How long the oldest byte is out that the peer has not acknowledged, at least:
 * since a pass first saw it, or since the last segment with data before that. A
 * FIN is none, and what was not sent yet has no such segment.
 */
static __always_inline __u32 unacknowledged_ms(const struct tcp_sock *tp, struct sh_quiet *q,
					       int state, __u32 sent_ms)
{
	__u32 now = bpf_ktime_get_ns() / 1000000, una = tp->snd_una;

	if (!q->since_ms || q->una != una) {
		if (state != BPF_TCP_ESTABLISHED || tp->snd_nxt == una)
			sent_ms = 0;
		q->una = una;
		q->since_ms = now - sent_ms ?: 1;
	}
	return now - q->since_ms;
}

/* Where payload never came: whether any was sent. Our SYN and FIN are none. */
static __always_inline bool has_sent(const struct tcp_sock *tp, int state)
{
	return tp->bytes_acked > (state == BPF_TCP_FIN_WAIT2 ? 2 : 1);
}

/*
 * What is remembered of a connection since payload last came; where data is under way,
 * since any was last acknowledged: on one that only sends no payload ever comes.
 */
static __always_inline __u32 remembered(const struct sh_quiet *q, const struct tcp_sock *tp)
{
	__u32 at = tp->write_seq != tp->snd_una ? tp->snd_una : tp->rcv_nxt;

	return (q->asked ^ at) & 0xffffff ? 0 : q->asked >> 24;
}

static __always_inline void remember(struct sh_quiet *q, const struct tcp_sock *tp, __u32 n)
{
	__u32 at = tp->write_seq != tp->snd_una ? tp->snd_una : tp->rcv_nxt;

	q->asked = n << 24 | (at & 0xffffff);
}

/*
 * Whether a request that left in the tick in which payload came is out still,
 * which stamps do not tell: where the peer acknowledged it later than that it did
 * so without payload; and where it did so at once, its last segment that said
 * anything new (snd_wl1) carried none. The latter is so after the answer to a
 * keepalive, too: it holds at first alone, and is remembered.
 */
static __always_inline bool is_tied(const struct tcp_sock *tp, struct sh_quiet *q, __u32 data_ticks,
				    __u32 ack_ticks)
{
	__u64 acked_ms = (bpf_ktime_get_ns() / 1000 - tp->delivered_mstamp) / 1000;
	__u32 data_ms = ticks_to_ms(data_ticks);

	if (acked_ms + SH_TIE_MS < data_ms || remembered(q, tp))
		return true;
	if (tp->snd_wl1 != tp->rcv_nxt || ticks_to_ms(ack_ticks) + SH_TIE_MS < data_ms)
		return false;
	remember(q, tp, 1);
	return true;
}

/*
 * For how long nothing must have come: for as long as the request may take, or
 * where that is shorter until a keepalive was due and stayed unanswered. A timer
 * is late by up to an eighth of its time.
 */
static __always_inline __u32 unheard_ms(const struct sh_record *rec, __u32 silence)
{
	__u32 due = rec->effective.idle_s * 1125 + 1000;

	if (!rec->effective.keepalive || !rec->effective.idle_s || due > silence)
		return silence;
	return due;
}

/* What nobody could judge, or is being judged already. */
static __always_inline bool is_beyond(const struct tcp_sock *tp, const struct sh_record *rec)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	return sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)) ||
	       sk->sk_backlog.len || has_keys(tp) || BPF_CORE_READ_BITFIELD(tp, repair) ||
	       rec->leave_ns > bpf_ktime_get_ns();
}

/* Writes a suspect, and remembers that in the record. */
static __always_inline void suspect(struct seq_file *seq, const struct tcp_sock *tp,
				    struct sh_record *rec, struct sh_suspect *row)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	if (seq->count + sizeof(*row) >= seq->size) {
		__sync_fetch_and_add(&put_off, 1);
		return;
	}
	remember(&rec->quiet, tp, row->asked + 2);
	row->cookie = sk->__sk_common.skc_cookie.counter;
	row->netns = sk->__sk_common.skc_net.net->ns.inum;
	row->policy = rec->policy;
	sock_addrs(sk, row->local, row->remote);
	row->local_port = sk->__sk_common.skc_num;
	row->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	row->bound_dev = sk->__sk_common.skc_bound_dev_if;
	row->family = sk->__sk_common.skc_family;
	bpf_seq_write(seq, row, sizeof(*row));
}

/* Decides on the ages that row has. */
static __always_inline void consider(struct seq_file *seq, struct tcp_sock *tp,
				     struct sh_record *rec, struct sh_suspect *row)
{
	__u32 policy = rec->policy, known = remembered(&rec->quiet, tp), *silence;

	silence = bpf_map_lookup_elem(&sh_silences, &policy);
	if (!silence || row->heard_ms < unheard_ms(rec, *silence))
		return;
	row->asked = known ? known - 1 : 0;
	/* Each time that the peer turns out to live it has twice as long. */
	if (row->asked > 31 || row->request_ms < (__u64)*silence << row->asked)
		return;
	if (!is_beyond(tp, rec))
		suspect(seq, tp, rec, row);
}

/* The ages of the last payload, acknowledgement and sending, in ticks. */
struct ages {
	__u32 data, ack, sent;
};

/* As in look_ages(): the stamps come before the clock. */
static __always_inline void ages_of(const struct tcp_sock *tp, struct ages *a)
{
	__u32 data = tp->inet_conn.icsk_ack.lrcvtime, ack = tp->rcv_tstamp, sent = tp->lsndtime;
	__u32 now = bpf_jiffies64();

	a->data = now - data;
	a->ack = now - ack;
	a->sent = now - sent;
}

/* Whether the last word of an outbound connection is its own. */
static __always_inline bool is_unanswered(const struct tcp_sock *tp, struct sh_quiet *q, int state,
					  const struct ages *a)
{
	if (!tp->bytes_received)
		return has_sent(tp, state);
	if (a->sent == a->data)
		return is_tied(tp, q, a->data, a->ack);
	return a->sent < a->data;
}

/* Writes one struct sh_suspect for each. */
SEC("iter/bpf_sk_storage_map") int sh_silence(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sh_record *rec = ctx->value;
	struct sh_suspect row = {};
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;
	struct ages a;
	int state;

	if (!sk || !rec || rec->flags & (SH_CONNECTING | SH_RELEASING | SH_AMBIGUOUS))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	state = sk->__sk_common.skc_state;
	if (!tp || !may_answer(state))
		return 0;
	row.in_flight = tp->write_seq != tp->snd_una;
	if (!row.in_flight && rec->quiet.since_ms)
		rec->quiet.since_ms = 0;
	/* Who was asked has the last word when all is well. */
	if (!row.in_flight && rec->direction != SH_OUTBOUND)
		return 0;
	ages_of(tp, &a);
	row.request_ms = ticks_to_ms(a.sent);
	if (row.in_flight)
		row.request_ms = unacknowledged_ms(tp, &rec->quiet, state, row.request_ms);
	else if (!is_unanswered(tp, &rec->quiet, state, &a))
		return 0;
	row.heard_ms = ticks_to_ms(a.data < a.ack ? a.data : a.ack);
	consider(ctx->meta->seq, tp, rec, &row);
	return 0;
}
