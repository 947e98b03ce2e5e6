package controller

import "reflect"

// Tell tells what watches of one change, as an informer does, and returns the keys
// that were added; nil objects are new or gone.
func (l *Loop) Tell(old, now any) []string {
	for _, w := range l.watches {
		switch {
		case reflect.ValueOf(old).IsNil():
			w.handler.OnAdd(now, false)
		case reflect.ValueOf(now).IsNil():
			w.handler.OnDelete(old)
		default:
			w.handler.OnUpdate(old, now)
		}
	}
	return l.Added()
}

// Added takes the keys off the queue, and ends it.
func (l *Loop) Added() (keys []string) {
	defer l.queue.ShutDown()
	for l.queue.Len() > 0 {
		key, _ := l.queue.Get()
		l.queue.Done(key)
		keys = append(keys, key)
	}
	return keys
}
