// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The walks that find network namespaces by those who hold them: every thread,
 * by the namespace that it works in, and every open file, where it is a socket
 * or a descriptor of a namespace. Linux 5.10 and later.
 */
#include "include/vmlinux.h"
#include <linux/bpf.h>
#include <linux/magic.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define O_APPEND 02000

enum sh_holders_limits {
	/* Rows for one namespace: the first holder may be gone, or out of reach,
	 * when it is asked. */
	SH_HOLDERS_ROWS = 8,
};

/* bpf_sock_from_file() is there (Linux 5.11). Without it the socket is read by
 * bpf_probe_read_kernel(), which lockdown=confidentiality refuses. */
const volatile bool can_sock_from_file = true;

/* Counts walks, so that what an earlier one left in the map says nothing. */
__u64 sh_pass;

/* What was told of one namespace. */
struct sh_said {
	__u64 pass;
	__u32 rows; /* SH_HOLDERS_ROWS: nothing more is to be said about it */
	__s32 tgid; /* of the last row */
};

/* By inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct sh_said);
} sh_told SEC(".maps");

/* One who holds a namespace. */
struct sh_holder {
	__u32 inode; /* of the namespace */
	__s32 tid;   /* in the first PID namespace */
	__s32 fd;    /* -1: the thread works in it */
};

const struct sh_holder *const unused_holder __attribute__((unused));
const enum sh_holders_limits *const unused_limits __attribute__((unused));

/* The agent's own descriptors and threads hold nothing: it would never let go. */
static __always_inline bool ourselves(struct task_struct *task)
{
	return task->tgid == bpf_get_current_pid_tgid() >> 32;
}

/* Writes a row unless enough is known of the namespace. */
static __always_inline int tell(struct seq_file *seq, struct task_struct *task, __u32 fd,
				__u32 inode)
{
	struct sh_holder row = {.inode = inode, .tid = task->pid, .fd = fd};
	struct sh_said now = {.pass = sh_pass, .rows = 1, .tgid = task->tgid};
	struct sh_said *told;

	if (!inode)
		return 0; /* gone while we looked */
	told = bpf_map_lookup_elem(&sh_told, &inode);
	if (told && told->pass == now.pass) {
		if (told->rows >= SH_HOLDERS_ROWS || told->tgid == now.tgid)
			return 0;
		now.rows = told->rows + 1;
	}
	/* A row that did not fit is written again in the next read. Where the map
	 * is full rows repeat. */
	if (!bpf_seq_write(seq, &row, sizeof(row)))
		bpf_map_update_elem(&sh_told, &inode, &now, BPF_ANY);
	return 0;
}

/* /proc shows the first thread of a process; this sees all. */
SEC("iter/task") int sh_residents(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task || ourselves(task))
		return 0;
	/* An exiting task has no nsproxy: a load through NULL reads 0. */
	return tell(ctx->meta->seq, task, -1, task->nsproxy->net_ns->ns.inum);
}

/* 0 where the file is none. */
static __always_inline __u32 of_socket(struct file *file)
{
	struct socket *sock;

	if (!can_sock_from_file) {
		sock = file->private_data; /* NULL with O_PATH */
		return BPF_CORE_READ(sock, sk, __sk_common.skc_net.net, ns.inum);
	}
	sock = bpf_sock_from_file(file);
	return sock ? sock->sk->__sk_common.skc_net.net->ns.inum : 0;
}

SEC("iter/task_file") int sh_holders(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	unsigned long magic;

	if (!task || !file)
		return 0;
	magic = file->f_inode->i_sb->s_magic;
	if (magic != SOCKFS_MAGIC && magic != NSFS_MAGIC)
		return 0;
	if (ourselves(task))
		return 0;
	if (magic == SOCKFS_MAGIC)
		return tell(ctx->meta->seq, task, ctx->fd, of_socket(file));
	/* A registry's handle, of another agent: two would keep namespaces alive for
	 * each other for ever. */
	if (file->f_flags & O_APPEND)
		return 0;
	/* A namespace of any kind; their numbers are of one range. */
	return tell(ctx->meta->seq, task, ctx->fd, file->f_inode->i_ino);
}
