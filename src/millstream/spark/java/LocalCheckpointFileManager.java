package millstream.spark;

import java.io.BufferedOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes checkpoint files on a local file system without starting processes.
 *
 * Hadoop without its native library runs chmod and readlink, ten processes for each checkpoint file.
 * This class makes the same files with system calls. Any other file system keeps Spark's choice.
 */
public class LocalCheckpointFileManager implements CheckpointFileManager {
  private static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";

  private final CheckpointFileManager files;

  public LocalCheckpointFileManager(Path path, Configuration conf) throws IOException {
    FileSystem system = path.getFileSystem(conf);
    if (system instanceof LocalFileSystem || system instanceof RawLocalFileSystem) {
      this.files = new LocalFiles(path, conf);
    } else {
      Configuration sparks = new Configuration(conf);
      sparks.unset(SETTING);
      this.files = CheckpointFileManager$.MODULE$.create(path, sparks);
    }
  }

  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    return this.files.createAtomic(path, overwrite);
  }

  public FSDataInputStream open(Path path) {
    return this.files.open(path);
  }

  public FileStatus[] list(Path path, PathFilter filter) {
    return this.files.list(path, filter);
  }

  public FileStatus[] list(Path path) {
    return this.files.list(path);
  }

  public void mkdirs(Path path) {
    this.files.mkdirs(path);
  }

  public boolean exists(Path path) {
    return this.files.exists(path);
  }

  public void delete(Path path) {
    this.files.delete(path);
  }

  public boolean isLocal() {
    return this.files.isLocal();
  }

  public Path createCheckpointDirectory() {
    return this.files.createCheckpointDirectory();
  }

  public void close() {
    this.files.close();
  }

  /** Spark's manager for FileSystem, with the operations replaced that would start processes. */
  public static class LocalFiles extends FileSystemBasedCheckpointFileManager {
    private final Path root;

    public LocalFiles(Path path, Configuration conf) {
      super(path, conf);
      this.root = path;
    }

    public FSDataOutputStream createTempFile(Path path) throws IOException {
      File file = local(path);
      makeDirectories(file.getParentFile());
      return new FSDataOutputStream(
          new BufferedOutputStream(Files.newOutputStream(file.toPath())), (FileSystem.Statistics) null);
    }

    /**
     * Move a finished file to its name.
     *
     * A checksum file of an older file with that name has to go first: a crash after the rename would
     * leave it beside contents that it does not describe.
     */
    public void renameTempFile(Path source, Path target, boolean overwrite) throws IOException {
      File from = local(source);
      File to = local(target);
      File checksum = new File(to.getParentFile(), "." + to.getName() + ".crc");
      if (!overwrite && to.exists()) {
        throw exists(from, to);
      }
      Files.deleteIfExists(checksum.toPath());
      if (overwrite || !linked(from, to)) {
        Files.move(from.toPath(), to.toPath(), StandardCopyOption.ATOMIC_MOVE);
      } else {
        Files.delete(from.toPath());
      }
    }

    public void mkdirs(Path path) throws IOException {
      makeDirectories(local(path));
    }

    public Path createCheckpointDirectory() throws IOException {
      mkdirs(this.root);
      return fs().makeQualified(this.root);
    }

    /**
     * Give a file its second name, and fail if another file has that name: unlike a rename, a link never
     * replaces a file. Return false if the file system has no links.
     */
    private boolean linked(File from, File to) throws IOException {
      try {
        Files.createLink(to.toPath(), from.toPath());
        return true;
      } catch (java.nio.file.FileAlreadyExistsException error) {
        throw exists(from, to);
      } catch (FileSystemException error) {
        return false;
      } catch (UnsupportedOperationException error) {
        return false;
      }
    }

    private FileAlreadyExistsException exists(File from, File to) {
      return new FileAlreadyExistsException("cannot rename " + from + " to " + to + ": it exists");
    }

    private void makeDirectories(File directory) throws IOException {
      if (!directory.isDirectory() && !directory.mkdirs() && !directory.isDirectory()) {
        throw new IOException("cannot make the directory " + directory);
      }
    }

    private File local(Path path) {
      return new File(fs().makeQualified(path).toUri().getPath());
    }
  }
}
