// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/policy"
)

func newReload(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the agent read its policy file again",
		Long: `Have the agent read its policy file again, and say what came of it. The agent does
so by itself when the file changes, and on SIGHUP. It needs root.

A file that is not right is refused whole: every mistake is told as
file:line:column: message, the policy in force stays, and the exit code is 1.
Connections that are open are brought in line, too, on Linux 5.15 and later.`,
		Example: `  sudo sockhealth reload
  sudo sockhealth reload -o json`,
		Args: noArgs,
	}
	runDir := cmd.Flags().String("run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := api.Dial(*runDir).Reload(cmd.Context())
		if err != nil {
			return refused(err)
		}
		if output.value == asJSON {
			return writeJSON(e.stdout, r)
		}
		if _, err := fmt.Fprintf(e.stdout, "%s: revision %s is in force since %s\n",
			r.File, r.Revision, r.Loaded.Local().Format(time.RFC3339)); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	}
	return cmd
}

// refused puts a file that could not be read into a sentence; mistakes inside
// the file are told one by one elsewhere.
func refused(err error) error {
	var mistakes *policy.Errors
	if errors.As(err, &mistakes) && mistakes.List[0].File == "" {
		return errors.New(mistakes.List[0].Message)
	}
	return err
}
