// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// depmod and modprobe are not where users look for programs.
	err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err == nil {
		f := new(folders)
		err = newRoot(f).ExecuteContext(ctx)
		err = errors.Join(err, f.close())
	}
	var status statusError
	switch {
	case errors.As(err, &status):
		os.Exit(int(status))
	case err != nil:
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// statusError is the exit status of a guest's program that was told already.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func newRoot(f *folders) *cobra.Command {
	root := &cobra.Command{
		Use:           "vm",
		Short:         "Run tests under other Linux kernels",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if f.cache, err = filepath.Abs(f.cache); err != nil {
				return err
			}
			if err := f.open(); err != nil {
				return err
			}
			// What tools leave that are interrupted, as go does, goes with the folder.
			return errors.Join(os.Setenv("TMPDIR", f.run), os.Setenv("GOTMPDIR", f.run))
		},
	}
	root.PersistentFlags().StringVar(&f.cache, "cache", cacheDefault(), "folder of the kernels")
	root.AddCommand(newFetch(f), newExec(f), newMatrix(f), newTable())
	return root
}

func newFetch(f *folders) *cobra.Command {
	return &cobra.Command{
		Use:   "fetch [KERNEL...]",
		Short: "Unpack kernels into the cache folder, all of amd64 if none is named",
		RunE: func(cmd *cobra.Command, names []string) error {
			ks, err := find(names)
			if err != nil {
				return err
			}
			for _, k := range ks {
				if err := k.fetch(cmd.Context(), f, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newExec(to *folders) *cobra.Command {
	var name string
	var beside, env []string
	m := new(machine)
	cmd := &cobra.Command{
		Use:   "exec --kernel KERNEL PROGRAM [ARG...]",
		Short: "Run a static program as root under a kernel; its exit status is this command's",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ks, err := find([]string{name})
			if err != nil {
				return err
			}
			if m.kernel, err = ks[0].open(to.cache); err != nil {
				return err
			}
			dir, err := os.Getwd()
			if err != nil {
				return err
			}
			if m.init, err = initOf(ks[0].arch); err != nil {
				return err
			}
			m.env = append(usual(bare), env...)
			m.tmp, m.programs = to.run, []program{{path: args[0], beside: beside, args: args[1:], dir: dir}}
			m.stdout, m.stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			status, err := m.run(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "vm: kernel %s: %v\n", name, err)
			}
			if status != 0 {
				return statusError(status)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the program's own flags are its own
	f.StringVar(&name, "kernel", "", "the kernel to boot")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for the program, beside what tests are told")
	f.StringSliceVar(&beside, "beside", nil, "files to put into the program's folder")
	f.StringSliceVar(&m.without, "without", nil, "kernel modules to take away")
	f.StringVar(&m.append, "append", "", "more for the kernel's command line")
	f.DurationVar(&m.timeout, "timeout", 10*time.Minute, "when to end the machine")
	if err := cmd.MarkFlagRequired("kernel"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

// initOf returns the binary of a guest's first process, which stands beside
// this one.
func initOf(arch string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), "init-"+arch)
	if !isFile(path) {
		return "", fmt.Errorf("%s is not there [run: make vm-tool]", path)
	}
	return path, nil
}
