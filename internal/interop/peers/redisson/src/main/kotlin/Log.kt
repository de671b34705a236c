package watchlock.interop

import java.util.logging.Handler
import java.util.logging.Level
import java.util.logging.LogRecord
import java.util.logging.Logger

/** Keeps every warning and error that Redisson, or Netty under it, logs, until it is taken. */
object Log : Handler() {
    private val kept = mutableListOf<String>()

    fun install() {
        val root = Logger.getLogger("")
        root.handlers.forEach(root::removeHandler)
        root.addHandler(this)
        root.level = Level.INFO
    }

    fun take(): List<String> = synchronized(kept) { kept.toList().also { kept.clear() } }

    override fun publish(record: LogRecord) {
        if (record.level.intValue() < Level.WARNING.intValue()) return
        val line = buildString {
            append(record.level).append(' ').append(record.loggerName).append(": ").append(record.message)
            record.thrown?.let { append("\n").append(it.stackTraceToString()) }
        }
        synchronized(kept) { kept += line }
        System.err.println(line)
    }

    override fun flush() {}

    override fun close() {}
}
