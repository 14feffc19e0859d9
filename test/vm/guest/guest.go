// SPDX-License-Identifier: Apache-2.0

// Package guest is what a virtual machine's first process is told by the
// program that boots it.
package guest

// SpecPath is where the guest finds its Spec, as JSON.
const SpecPath = "/vm/spec.json"

// Folder is where the programs stand, and what they find beside them.
const Folder = "/vm"

// Seconds is the variable in the first process's environment that says when to be
// done, in seconds since the kernel's start. A program that runs then is sent SIGQUIT,
// which makes a Go program print its goroutines, and none is started after it.
const Seconds = "VM_SECONDS"

// Spec is one run.
type Spec struct {
	Programs []Program // run one after the other, whatever becomes of the others
	Env      []string  // NAME=VALUE, beside PATH, HOME and TMPDIR
	// Without names kernel modules that are taken away before the first starts.
	Without []string
	// Output and Status are the devices for the programs' output and for the first
	// exit status that is not 0, a decimal number and a line feed.
	Output, Status string
}

// Program is one program of a run.
type Program struct {
	Args []string // its path and its arguments
	Dir  string   // its working directory
	// Finds says that it tells by exit status 1 what it has found: the run goes on as
	// if that were 0.
	Finds bool
}

// Booted is in the kernel log once the machine is ready to run the program.
const Booted = "init: booted"

// Statuses of the machine itself, beside those of the program.
const (
	StatusTimeout = 124 // the program did not end in time
	StatusFailed  = 125 // the machine could not run it, or ended under it
	StatusNoStart = 127 // the program could not be started
)
