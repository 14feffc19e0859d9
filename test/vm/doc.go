// SPDX-License-Identifier: Apache-2.0

// Command vm runs static programs, above all the project's own test binaries,
// as root under other Linux kernels: Debian's, booted by qemu without KVM.
//
//	vm fetch 5.10 6.1           unpack kernels into the cache folder
//	go test -exec 'vm exec --kernel 5.10' ./internal/loader
//	vm matrix --kernel 5.10     every privileged test, the demo and doctor
//
// A guest has cgroup v2, bpffs, BTF, and the kernel's own module loader with the
// modules that the tests ask for; the module's source tree stands at the same
// path as on the host, so that tests find their files. The program's output is
// live; its exit status is the guest's. A program that is not done shortly before the
// machine's end is sent SIGQUIT, so that a Go program prints its goroutines. A guest
// that ends without a status is told as a time-out or as a crash, with the kernel log
// from the trouble on, or its end.
//
// It writes only below the cache folder, the folder for results and, what it builds
// for the guests, bin/vm of the module; go keeps its own cache of what it built. It
// needs no privilege, and removes what belongs to a run when that ends or is
// interrupted; the next run removes what one left that was killed. It does not
// install anything: docs/kernels.md names the packages that it calls.
package main
