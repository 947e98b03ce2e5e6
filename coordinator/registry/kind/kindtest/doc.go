// Package kindtest plays scenarios of API kinds: what a client asks is in the
// text, and so is what it is answered. A scenario runs through the registry's
// stores, subresources and tables as in the server, on a storage in memory; only
// admission, and authorization that a kind does not ask for itself, are left out.
//
// A line "> verb resource ..." is done; the lines below it, up to the next empty
// line, are its object in YAML, and those that begin with "= " what came of it. A
// file that is played is rewritten with the answers, and must be as it was:
//
//	> create poddisruptionbudgets
//	spec: {minAvailable: 1}
//	= metadata: {"generation":1,"name":"a","namespace":"default"}
//	= spec: {"minAvailable":1}
//
// A cause that a client is told more than once is named again, as the message names it
// once.
//
//	as USER [GROUP...]             who asks from now on; without a user, nobody
//	show [FIELD...]                what is printed of objects from now on; without fields, all
//	create RESOURCE                an object "a" in "default", unless it says otherwise
//	update RESOURCE[/SUBRESOURCE]  the object, merged into what is stored
//	upsert RESOURCE[/SUBRESOURCE]  as server-side apply asks: made if it is missing
//	get|table RESOURCE             as it is, or as kubectl shows it
//	select RESOURCE FIELD=VALUE    names of those that a field selector takes
//	delete RESOURCE [now]          with no grace period
package kindtest
