// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// defaultPolicy is where the policy file stands unless a flag says otherwise.
const defaultPolicy = "/etc/sockhealth/policy.yaml"

func newPolicy(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain policy files",
		Long:  "Check and explain policy files. No agent is needed and none is asked.",
		Example: `  sockhealth policy check policy.yaml
  sockhealth policy explain --policy policy.yaml 10.20.1.2:7100`,
	}
	cmd.AddCommand(newPolicyCheck(e), newPolicyExplain(e))
	return cmd
}

func newPolicyCheck(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE...",
		Short: "Check policy files",
		Long: `Check policy files as "sockhealth run" would, and print one line for each that is
right. Of a bad one every mistake is told as file:line:column: message, and the
exit code is 1. What is right and may well not be meant, or asks for what this
machine's kernel lacks, is told in the same way as a warning. "-" stands for stdin.`,
		Example: `  sockhealth policy check /etc/sockhealth/policy.yaml
  sockhealth policy check - <policy.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which policy file?")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			bad := false
			for _, file := range args {
				pol, _, err := readPolicy(e, file)
				if err != nil {
					fmt.Fprintln(e.stderr, err)
					bad = true
					continue
				}
				_, err = fmt.Fprintf(e.stdout, "%s: ok, revision %s, %d peers, %d prefixes\n",
					file, pol.Revision, len(pol.Peers), len(pol.Compile()))
				if err != nil {
					return fmt.Errorf("write output: %w", err)
				}
				for _, w := range pol.Warnings(groundHere()) {
					fmt.Fprintln(e.stderr, w)
				}
			}
			if bad {
				return errSaid
			}
			return nil
		},
	}
}

// readPolicy returns a policy and its text; "-" is stdin.
func readPolicy(e *env, file string) (*policy.Policy, string, error) {
	in, name := e.stdin, "stdin"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, "", remedied(fmt.Errorf("read policy: %w", err), "name another file, or - for stdin")
		}
		defer f.Close()
		in, name = f, file
	}
	b, err := io.ReadAll(io.LimitReader(in, policy.MaxSize+1))
	if err != nil {
		return nil, "", fmt.Errorf("read policy: %w", err)
	}
	if len(b) > policy.MaxSize {
		return nil, "", fmt.Errorf("read policy %q: %w: more than %d bytes", name, policy.ErrTooLarge, policy.MaxSize)
	}
	pol, err := policy.Parse(name, b)
	return pol, string(b), err
}
