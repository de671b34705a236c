package watchlock.interop

import java.io.OutputStream
import java.io.PrintStream

/** From here on this process writes nothing to stderr. What is logged is still kept. */
fun hush() = System.setErr(PrintStream(OutputStream.nullOutputStream()))
