// SPDX-License-Identifier: Apache-2.0

// Package guest is what a virtual machine's first process is told by the
// program that boots it.
package guest

// SpecPath is where the guest finds its Spec, as JSON.
const SpecPath = "/vm/spec.json"

// Spec is one run.
type Spec struct {
	Args []string // the program's path and its arguments
	Env  []string // NAME=VALUE, beside PATH, HOME and TMPDIR
	Dir  string   // the program's working directory
	// Without names kernel modules that are taken away before the program starts.
	Without []string
	// Output and Status are the devices for the program's output and for its exit
	// status, a decimal number and a line feed.
	Output, Status string
}

// Booted is in the kernel log once the machine is ready to run the program.
const Booted = "init: booted"

// Statuses of the machine itself, beside those of the program.
const (
	StatusTimeout = 124 // the program did not end in time
	StatusFailed  = 125 // the machine could not run it, or ended under it
	StatusNoStart = 127 // the program could not be started
)
