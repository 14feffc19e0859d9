// SPDX-License-Identifier: Apache-2.0

// Package registry knows the network namespaces of the node: each is opened once
// when it is found, held while anybody but us uses it, and let go afterwards. It
// reads and writes nothing inside them.
//
// # What is found
//
// A namespace is in use, and found, while
//   - a thread works in it, of whatever process;
//   - it has a name: a mount in the mount namespace of the calling thread or of
//     process 1, where ip-netns(8), Docker, containerd and CRI-O keep theirs;
//   - a process has a socket of it open, or a descriptor of the namespace.
//
// Not found are those that live by nothing else than: a name in another mount
// namespace; a file on its way through a Unix socket or registered with io_uring
// alone; a socket of the kernel's own (NFS, nvme-tcp) whose namespace has been
// left by everybody; an orphan, which is a connection that nobody has open any
// more. TIME_WAIT keeps no namespace. An event of the kernel's that names such a
// namespace leaves it in Status.Unknown, so that it is not silently missing.
//
// Without the walks (see Walker) it is what /proc shows: the first thread of each
// process, and names.
//
// # One number, one namespace
//
// Namespaces are keyed by inode number, and the kernel gives a number again once
// its namespace is freed. It cannot be freed while the registry, or a user of a
// handle that the registry gave out, holds it: two namespaces that the registry
// knows never share a number, nor does one that a user still holds share it with
// one that came later. Two containers with the same addresses are two numbers.
//
// # Letting go
//
// An open descriptor keeps a namespace alive, so that the registry must not count
// its own. The walks leave out this process whole, and Refresh drops what nothing
// else held. Two agents would find each other's descriptors and keep namespaces
// alive for ever: the registry marks its own with O_APPEND, which means nothing
// on a namespace, and the walks pass over those so marked. A namespace outlives
// its last user by up to the interval of Watch, with its devices and addresses.
//
// Whoever was given a handle keeps the namespace until it closes it.
//
// Privileges: CAP_SYS_PTRACE to open what another user's processes hold,
// CAP_NET_ADMIN over a namespace that only a socket holds, CAP_SYS_ADMIN over one
// that only a name or a descriptor holds, and what the Walker needs. Kernel floor: 5.6 (pidfd_getfd); before Linux 6.9 a socket that only a
// thread with a descriptor table of its own has open cannot be taken over.
//
// Goroutines: all methods may be called from any goroutine; the package starts
// none. Watch runs in its caller's.
package registry
