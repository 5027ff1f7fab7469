package schema

// Change is the effect of a new value of a program's key when the manifest is applied to a running
// box.
type Change string

// The kinds of change, with the effect on the process.
const (
	ChangeLive      Change = "live"       // in force at once; the process keeps running
	ChangeNextStart Change = "next start" // in force at the next start; the process keeps running
	ChangeRestart   Change = "restart"    // the program is restarted
)

// programChanges is the table for the reference. applied_test.go checks that it is true.
var programChanges = map[string]Change{
	// The set of programs: new programs start, removed programs stop, the others keep running.
	"enabled": ChangeLive, "when": ChangeLive, "instances": ChangeLive,

	"priority": ChangeLive, "needs": ChangeLive, "autostart": ChangeLive, "required": ChangeLive, "essential": ChangeLive,
	"on_fatal": ChangeLive, "restart": ChangeLive, "exit_codes": ChangeLive, "backoff": ChangeLive, "restart_limit": ChangeLive,
	"start_retries": ChangeLive, "stop": ChangeLive, "stop_signal": ChangeLive, "stop_timeout": ChangeLive,
	"stop_command": ChangeLive, "hooks": ChangeLive, "control": ChangeLive,

	"start_seconds": ChangeNextStart, "start_timeout": ChangeNextStart,

	"command": ChangeRestart, "type": ChangeRestart, "schedule": ChangeRestart, "overlap": ChangeRestart, "timezone": ChangeRestart,
	"ready": ChangeRestart, "health": ChangeRestart, "kill": ChangeRestart, "user": ChangeRestart, "group": ChangeRestart,
	"groups": ChangeRestart, "umask": ChangeRestart, "directory": ChangeRestart, "environment": ChangeRestart,
	"env_file": ChangeRestart, "pass_environment": ChangeRestart, "limits": ChangeRestart, "guard": ChangeRestart, "sandbox": ChangeRestart,
	"logs": ChangeRestart, "stdin": ChangeRestart, "tty": ChangeRestart,
}

// ProgramChange is the effect of a change of a program's key. It is "" for a key that does not
// concern the process.
func ProgramChange(key string) Change { return programChanges[key] }

// ProgramKeys are the keys of a program, in the order of the reference.
func ProgramKeys() []string {
	var names []string
	for _, k := range programKeys() {
		names = append(names, k.name)
	}
	return names
}
