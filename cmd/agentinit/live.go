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
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// orphanWait is how long the processes that belong to no program have between
// the last TERM and the last KILL.
const orphanWait = 500 * time.Millisecond

// flushWait bounds what the end of the box spends on a console that is stuck, and
// then on a stderr that is.
const flushWait = time.Second

// atRest is how long after the seal the memory of the boot is given back: what
// starts beside the programs would fetch it again before that.
const atRest = time.Second

// run boots the box and returns the exit status when it has ended. caught are the
// signals to it.
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
	return b.live(caught)
}

// live is the life of the box. Phase 0 comes first, because the manifest says
// where to listen. The control socket is taken before phase 1; who connects waits
// until what answers there is made, beside the boot.
func (b *box) live(caught <-chan os.Signal) int {
	settleHeap := deferCollection(b.getenv)
	reserve := sync.OnceFunc(func() { reserveThreads(quietThreads) })
	go reserve()
	// What does not wait for one another is done side by side: together it is a
	// third of the time until the first program runs.
	load := sync.OnceValue(func() error { return b.boot.Load(b.stopped) })
	go load()
	prepareErr := b.prepare()
	loadErr := load()
	b.speak(loadErr)
	if err := cmp.Or(loadErr, prepareErr); err != nil {
		return b.neverStarted(err)
	}
	if b.listens() {
		reserve = sync.OnceFunc(func() { reserveThreads(servingThreads) })
		go reserve()
	}
	open := sync.OnceValues(b.claim)
	go open()
	buildErr := b.build()
	socket, openErr := open()
	if err := cmp.Or(buildErr, openErr); err != nil {
		if socket != nil {
			err = errors.Join(err, socket.Close())
		}
		return b.neverStarted(err)
	}
	reserve() // before there is a program that could take what is left
	b.background(func() { b.obey(caught, b.stopped.Done()) })
	b.background(b.watchShutdown)
	results := make(chan supervisor.Result, 1)
	go func() { results <- b.sup.Run(context.Background()) }()

	b.follow()
	booting, interrupt := context.WithCancelCause(b.stopped)
	defer interrupt(nil)
	serving := make(chan error, 1)
	go func() {
		err := b.buildServers()
		if err == nil {
			b.serve(socket)
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
	if err := <-serving; err != nil {
		bootErr = err
	}
	b.traceBoot()
	if bootErr != nil {
		return b.end(bootErr, b.stopSupervisor(results, bootErr))
	}
	b.afterBoot()
	b.background(func() {
		select {
		case <-time.After(atRest):
		case <-b.stopped.Done():
			return
		}
		settleHeap()
		if err := proc.ReleaseText(); err != nil {
			b.publish(event.Debug, "TextNotReleased", map[string]any{"message": err.Error()})
		}
	})
	return b.end(nil, <-results)
}

// background runs f until the box is stopped; the end waits for it.
func (b *box) background(f func()) { b.running.Go(f) }

// follow keeps readiness true to what happens.
func (b *box) follow() {
	b.background(func() { b.readiness.Follow(b.stopped, b.sup) })
	if mounts := b.boot.Mounts(); len(mounts) > 0 {
		b.background(func() { b.readiness.FollowMounts(b.stopped, mounts, probes.CheckMount) })
	}
	if relays, wanted := b.boot.Relays(); wanted {
		b.background(func() { b.readiness.FollowRelays(b.stopped, relays, b.relayReachable) })
	}
}

// afterBoot starts what watches a box that is up.
func (b *box) afterBoot() {
	b.background(b.keepBoot)
	b.joinMesh()
	b.background(func() { b.boot.GuardSentinel(b.stopped) })
	b.background(func() { b.drift.Run(b.stopped) })
}

// watchShutdown makes /ready 503 and takes the sentinel away the moment a
// shutdown begins, for whatever reason.
func (b *box) watchShutdown() {
	events := b.bus.Watch(0)
	for {
		e, err := events.Next(b.stopped)
		if err != nil {
			return
		}
		if e.Name != event.ShutdownStarted {
			continue
		}
		endWithoutCollection(b.getenv)
		b.readiness.Shutdown()
		if err := b.boot.Unseal(); err != nil {
			b.publish(event.Warn, "SentinelNotRemoved", map[string]any{"message": err.Error()})
		}
		return
	}
}

// stopSupervisor ends what has been started because err ended the boot.
func (b *box) stopSupervisor(results <-chan supervisor.Result, err error) supervisor.Result {
	b.readiness.Shutdown()
	select {
	case r := <-results:
		return r
	default:
	}
	b.sup.Shutdown(err.Error())
	return <-results
}

// neverStarted ends a box that has not come to starting anything.
func (b *box) neverStarted(err error) int {
	var findings bootstrap.Findings
	if errors.As(err, &findings) {
		b.tellFindings(wireFindings(findings))
	}
	b.traceBoot()
	return b.end(err, supervisor.Result{})
}

// end takes the box down after its programs: what is left of processes, the
// listeners, the log; then it says why.
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
	if left := b.owner.KillAll(orphanWait); left > 0 {
		b.publish(event.Warn, "ProcessesLeft", map[string]any{"count": left})
	}
	if err := b.owner.Close(); err != nil {
		b.publish(event.Warn, "OwnerNotClosed", map[string]any{"message": err.Error()})
	}
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
		closeForwards(flushing, b.forwards)
	}
	if err := b.plane.Close(flushing); err != nil {
		b.stderr.say(fmt.Appendln(nil, "agentinit: the end of the log may be missing:", err), nil)
	}
	b.stderr.wait(flushWait)
	return code
}
