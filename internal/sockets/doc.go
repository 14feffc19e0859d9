// SPDX-License-Identifier: Apache-2.0

// Package sockets is the one face of a network namespace's TCP sockets: get,
// find, scan, provoke, destroy. Behind it stand the look-up program and the
// walks of package loader and the kernel's inet_diag; which of them answers is
// nobody else's business. Where the kernel has no inet_diag for TCP, or one that
// cannot destroy, walks find and close in its place.
//
// It judges nothing and keeps nothing: no cache, no list of sockets. Every call
// names the namespace; the calling goroutine works inside it for that time.
//
// Privileges: those of packages loader, netns and sockdiag in the namespace.
// Kernel: Linux 5.10; a walk that the kernel lacks is loader.ErrUnsupported.
// To close takes inet_diag with CONFIG_INET_DIAG_DESTROY, or Linux 6.5.
// A *Sockets may be used by many goroutines at the same time.
package sockets
