// Package process is what the daemons do because they are processes, whatever
// they serve: nothing here knows of pods or of the API.
//
//	lock.go     one process on a data directory; who was just killed is waited for
//	log.go      one log a process, with what the libraries say that matters
//	repeats.go  what is said again and again is counted
//	notify.go   the service manager hears: ready, alive, stopping (sd_notify(3))
//	listen.go   connections are limited before anybody has said who they are, and
//	            so is the time of who is refused; complaints.go has what they do wrong
//	timers.go   timers of an idle process wait for each other, an agent's always a little;
//	            not those of programs that are not ours
//	stack.go    goroutines of requests begin with the stack that they need
//	clock.go    somebody has set the clock
//	address.go  the machine has another address than it began with
//	trim.go     memory that only a start or a burst needed goes back
//	umask.go    files have the modes that the code says
//	proxy.go    what is within the cluster is asked without an HTTP proxy
//	manual.go   manual pages and completions of the command, for packages
//	output.go   the beginning of what a program says
//	advise.go   what to do about an error of the machine, a full disk
package process
