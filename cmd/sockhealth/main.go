// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
)

// env is what a command has of the world outside.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// flush waits, not for long, until stderr has what was written to it; nil where
	// writing does.
	flush func()
	args  []string // without the program's name
	exe   string   // the file of this program, for starting it again
}

func main() {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	os.Exit(execute(context.Background(), &env{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		args: os.Args[1:], exe: exe,
	}))
}
