package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/cmd/agentinit/reserve"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// orphanWait is the time between the last TERM and the last KILL for processes that belong to no
// program.
const orphanWait = 500 * time.Millisecond

// flushWait bounds each of three waits at the end of the box: for a collector to take the last spans,
// for forwards, console and log files to take the last lines, and for stderr.
const flushWait = time.Second

// drainWait bounds how long the report about the end waits for the last output of the programs. Only a
// slow disk of a log file and a slow reader of agentinit's output make it wait so long.
const drainWait = 500 * time.Millisecond

// atRest is how long after the seal the memory of the boot is given back. Earlier, work that begins
// after the seal would need it again.
const atRest = time.Second

// headStart is the most that the programs start before the servers are made. If a program holds up
// the boot, the box must still answer.
const headStart = 20 * time.Millisecond

// longBoot is the time after which a box that is not sealed counts as at rest: its programs run.
const longBoot = 10 * time.Second

// run boots the box and returns the exit status when it has ended. caught delivers the signals to
// the box.
func run(args, environ []string, stdout, stderr *os.File, caught <-chan os.Signal) int {
	o, code, handled := parseOptions(args, stdout, stderr)
	if handled {
		return code
	}
	b, err := newBox(o, environ, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		return int(bootstrap.ExitCode(err))
	}
	hearLibraries(b.bus)
	return b.live(caught)
}

// live is the life of the box. Phase 0 comes first, because the manifest says where to listen. The
// control socket and the ports are opened before phase 1. Clients wait until the code that answers
// them was made, in parallel with the boot.
func (b *box) live(caught <-chan os.Signal) int {
	settleHeap := deferCollection(b.getenv)
	if err := b.load(); err != nil {
		return b.neverStarted(err)
	}
	defer b.ports.close()
	socket, err := b.assemble()
	if err != nil {
		return b.neverStarted(err)
	}
	b.background(func() { b.obey(caught, b.stopped.Done()) })
	b.background(b.watchShutdown)
	results := make(chan supervisor.Result, 1)
	go func() { results <- b.sup.Run(context.Background()) }()

	b.follow()
	booted := make(chan struct{})
	b.background(func() { b.settle(booted, settleHeap) })
	if err := b.bootAndServe(socket); err != nil {
		return b.end(err, b.stopSupervisor(results, err))
	}
	b.afterBoot()
	close(booted)
	return b.end(nil, <-results)
}

// load runs phase 0. Steps that do not depend on each other run in parallel, here and in assemble:
// together they are a third of the time until the first program runs.
func (b *box) load() error {
	if err := reserve.Memory(); err != nil {
		return fmt.Errorf("cannot reserve memory: %w", err)
	}
	b.reserveThreads(reserve.QuietThreads)
	load := sync.OnceValue(func() error { return b.boot.Load(b.stopped) })
	go load()
	prepareErr := b.prepare()
	loadErr := load()
	b.speak(loadErr)
	return cmp.Or(loadErr, prepareErr)
}

// assemble makes what must exist before the programs, and opens the control socket and the ports.
func (b *box) assemble() (*control.Socket, error) {
	if b.listens() {
		b.reserveThreads(reserve.ServingThreads)
	}
	open := sync.OnceValues(b.claim)
	go open()
	buildErr := b.build()
	socket, openErr := open()
	if err := cmp.Or(buildErr, openErr); err != nil {
		if socket != nil {
			err = errors.Join(err, socket.Close())
		}
		return nil, err
	}
	return socket, nil
}

// reserveThreads begins to reserve n threads. b.reserved waits for them.
func (b *box) reserveThreads(n int) {
	b.reserved = sync.OnceFunc(func() { reserve.Threads(n) })
	go b.reserved()
}

// bootAndServe runs the phases after phase 0, and meanwhile makes and starts the servers.
func (b *box) bootAndServe(socket *control.Socket) error {
	booting, interrupt := context.WithCancelCause(b.stopped)
	serving := make(chan error, 1)
	go func() {
		b.yieldToStarts()
		err := b.buildServers()
		if err == nil {
			b.serve(socket)
			b.background(func() { b.boot.GuardSentinel(b.stopped) })
		} else {
			err = errors.Join(err, socket.Close())
			interrupt(err)
		}
		serving <- err
	}()
	go func() {
		<-b.sup.Done()
		interrupt(errors.New("the box is stopping"))
	}()
	bootErr := b.boot.Run(booting)
	serveErr := <-serving
	b.traceBoot()
	return cmp.Or(serveErr, bootErr)
}

// yieldToStarts leaves the processors to the start of the programs for a moment, before agentinit
// makes what only serves requests.
func (b *box) yieldToStarts() {
	select {
	case <-b.sup.Started():
	case <-time.After(headStart):
	case <-b.stopped.Done():
	}
}

// settle waits for the end of the boot and gives the memory of the boot back.
func (b *box) settle(booted <-chan struct{}, settleHeap func()) {
	select {
	case <-booted:
	case <-time.After(longBoot):
	case <-b.stopped.Done():
		return
	}
	if !sleep.For(b.stopped, atRest) {
		return
	}
	reserve.Addresses() // before the collection, after which they can be used
	settleHeap()
	if err := proc.ReleaseText(b.stopped.Done()); err != nil {
		b.publish(event.Debug, "TextNotReleased", map[string]any{"message": err.Error()})
	}
}

// listens tells whether there are listeners in addition to the control socket.
func (b *box) listens() bool {
	return b.addresses.Management != bootstrap.Off || b.addresses.Metrics != bootstrap.Off || embedded(b.manifest())
}

// background runs f until the box is stopped; the end waits for it.
func (b *box) background(f func()) { b.running.Go(f) }

// follow updates readiness from the events.
func (b *box) follow() {
	b.background(func() { b.readiness.Follow(b.stopped, b.sup) })
	if mounts := b.boot.Mounts(); len(mounts) > 0 {
		b.background(func() { b.readiness.FollowMounts(b.stopped, mounts, probes.CheckMount) })
	}
	if relays, wanted := b.boot.Relays(); wanted {
		b.background(func() { b.readiness.FollowRelays(b.stopped, relays, b.relayReachable) })
	}
}

// afterBoot starts the checks of a box that is up.
func (b *box) afterBoot() {
	b.background(b.keepBoot)
	b.joinMesh()
	b.background(func() { b.drift.Run(b.stopped) })
}

// watchShutdown makes /ready answer 503 and removes the sentinel as soon as a shutdown begins,
// whatever its cause.
func (b *box) watchShutdown() {
	<-b.sup.Ending()
	endWithoutCollection(b.getenv)
	b.readiness.Shutdown()
	if err := b.boot.Unseal(); err != nil {
		b.publish(event.Warn, "SentinelNotRemoved", map[string]any{"message": err.Error()})
	}
}

// stopSupervisor stops the programs because the boot failed with err.
func (b *box) stopSupervisor(results <-chan supervisor.Result, err error) supervisor.Result {
	b.readiness.Shutdown()
	select {
	case r := <-results:
		return r
	default:
	}
	b.sup.Fail(err.Error(), int(bootstrap.ExitCode(err)))
	return <-results
}

// neverStarted ends a box in which no program was started.
func (b *box) neverStarted(err error) int {
	if b.plane == nil { // there is not even the memory to load the manifest
		b.speak(err)
	}
	if findings, ok := errors.AsType[bootstrap.Findings](err); ok {
		b.tellFindings(wireFindings(findings))
	}
	b.traceBoot()
	return b.end(err, supervisor.Result{})
}

// end takes the box down after its programs: the remaining processes, the listeners, the log. Then
// it reports why the box ended.
func (b *box) end(bootErr error, result supervisor.Result) int {
	if failure := b.slotFailure.Load(); failure != nil {
		bootErr = failure
	}
	code := finalStatus(bootErr, result)
	if b.servers != nil {
		b.api.Close()
		if b.tasks != nil {
			b.tasks.Close()
		}
	}
	if b.core != nil {
		b.member.leave()
	}
	if b.servers != nil {
		b.disconnectSlots(disconnectTime(result.Grace, result.Took))
	}
	if b.owner != nil { // else the box could not become the owner of processes
		if left := b.owner.KillAll(orphanWait); left > 0 {
			b.publish(event.Warn, "ProcessesLeft", map[string]any{"count": left})
		}
		if err := b.owner.Close(); err != nil {
			b.publish(event.Warn, "OwnerNotClosed", map[string]any{"message": err.Error()})
		}
	}
	drainFor, drained := context.WithTimeout(context.Background(), drainWait)
	b.plane.Drain(drainFor)
	drained()
	b.say(b.report(code, bootErr, result))
	b.endTracing()
	b.halt()
	b.running.Wait()
	if b.core != nil {
		b.audit.Flush()
	}
	b.boot.Wait()
	if b.servers != nil {
		b.server.Wait()
	}
	if b.core != nil {
		if err := b.system.Close(); err != nil {
			b.stderr.say(fmt.Appendln(nil, "agentinit: cannot close the notification socket:", err), nil)
		}
	}
	flushing, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	if b.core != nil {
		if report := closeForwards(flushing, b.forwards); len(report) > 0 { // an event would have no reader any more
			b.stderr.say(report, nil)
		}
	}
	if err := b.plane.Close(flushing); err != nil {
		// A path may have a secret in it.
		b.stderr.say(fmt.Appendln(nil, "agentinit: the end of the log may be missing:", b.plane.Mask(err.Error())), nil)
	}
	b.stderr.wait(flushWait)
	return code
}
