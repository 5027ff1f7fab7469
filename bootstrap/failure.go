// Package bootstrap covers the time from the exec of agentinit until the box is sealed. It owns the
// table of phases and its runner, the policy for file writes, the artifact probes, the seal, the
// boot timeline and the termination report.
//
// A boot uses the image and never changes it: it does not download, install or compile software.
// The package never starts, stops or signals a process itself: commands run through Runner, and
// programs start through Starter.
package bootstrap

import (
	"errors"
	"fmt"
	"strings"
)

// Code is an exit status of agentinit.
type Code int

// The exit statuses. Others are possible: the status of the essential program that ended the box,
// or of one with on_fatal = "shutdown" (1 instead of 0), 128 + n for a signal, and in init mode the
// status of the child.
const (
	ExitOK               Code = 0  // clean shutdown asked for from outside
	ExitInternal         Code = 1  // internal error
	ExitUsage            Code = 2  // wrong command line
	ExitManifest         Code = 64 // the manifest is invalid, MANAGEMENT_API_AUTH_MODE is unknown, or adapters cannot be resolved
	ExitImmutableRoot    Code = 65 // the image's root is writable and AGENTBOX_STRICT_IMMUTABLE is true
	ExitArtifact         Code = 66 // a required artifact or closure is missing
	ExitRequiredFatal    Code = 67 // a required program went FATAL before the seal
	ExitSealTimeout      Code = 68 // seal timeout with on_seal_timeout = "exit"
	ExitOrchestrator     Code = 69 // the orchestrator adapter cannot connect
	ExitContractMismatch Code = 70 // an adapter's peer speaks another MAJOR of the contract
	ExitPrepare          Code = 73 // a root directory, the control socket, the management key or the identity could not be prepared
)

// Failure is the error that ends a boot.
type Failure struct {
	// Phase is set by the phase runner.
	Phase      string
	Code       Code
	Reason     string
	Capability string // the artifact or feature that is missing; empty otherwise
	Program    string // the program that failed; empty if none did
	Err        error  // the cause; may be nil
}

// Error is the reason on one line.
func (f *Failure) Error() string {
	cause := f.Err
	if findings, ok := errors.AsType[Findings](f.Err); ok {
		cause = findings.errors() // a report has no room for warnings
	}
	text := f.Reason
	if cause != nil {
		text += ": " + strings.ReplaceAll(cause.Error(), "\n", "; ") // errors.Join writes a line for each error
	}
	return text
}

// Summary is Error with only the first error of a manifest. All are reported separately.
func (f *Failure) Summary() string {
	if findings, ok := errors.AsType[Findings](f.Err); ok {
		if errs := findings.errors(); len(errs) > 1 {
			return f.Reason + ", the first: " + errs[0].Error()
		}
	}
	return f.Error()
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// fail makes a failure.
func fail(code Code, err error, format string, args ...any) *Failure {
	return &Failure{Code: code, Reason: fmt.Sprintf(format, args...), Err: err}
}

// ExitCode is the exit status for an error: that of the Failure in it, or ExitInternal if there is
// none, or ExitOK if err is nil.
func ExitCode(err error) Code {
	if err == nil {
		return ExitOK
	}
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Code
	}
	return ExitInternal
}
